"""Measurements of running servers: `load` sends a workload at a pattern of arrivals and records a trace per request.

`online` reports one load, `sweep` several, `compare` two servers in alternation, `startup` the time until a server
answers.
"""
