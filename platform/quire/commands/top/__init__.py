"""`platform top`: a live view of a running server in the terminal, from its /metrics.

`scrape` reads the metrics, `figures` computes rates and means between two scrapes, `frame` draws them, and `live`
repeats this for `command`.
"""
