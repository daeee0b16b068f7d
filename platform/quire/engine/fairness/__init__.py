"""Fairness between clients by their weights, and between sets of adapters.

`shares` has the arithmetic: who is over its share, and max-min division of places and of a step's tokens.
`client_tokens` and `adapter_tokens` are virtual token counters, `client_places` counts running sequences.
`client_shares` applies them to the state of the scheduler. `Candidates` puts clients over their share last; `Planner`
preempts them while another client waits.
"""
