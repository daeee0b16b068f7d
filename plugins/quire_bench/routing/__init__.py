"""`bench route`: replays a trace of requests through the router of the server, with simulated replicas behind it.

`trace` generates requests or reads them from a file, `replica` is what stands for an engine process, `simulation` lets
time pass, and `command` compares the policies.
"""
