"""Fairness between clients, and between sets of adapters.

`shares` has the arithmetic: who is over its share, max-min division of a step's tokens, and virtual token counters.
`client_shares` applies it to the state of the scheduler. `Candidates` puts clients over their share last; `Planner`
preempts them while another client waits.
"""
