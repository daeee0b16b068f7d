"""Changes of the models while the server runs: sleep, aliases, the settings file read again.

`control` is what routes and plugins call; `routes` are its paths. `aliases` are names that stand for models,
`uses` counts the requests that have found a model and are not in its engine yet, and `reload` compares two readings of
the settings. Loads and unloads are in `quire.server.service.model_loads`.
"""
