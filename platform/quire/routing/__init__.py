"""Chooses which replica of the models computes a request: pure code without I/O, clocks or threads.

`router` is what the server and the simulator (`platform bench route`) call. The policy of a plugin, in `chosen_policy`,
chooses among the replicas, from what `candidates` says of each: its load, the prefixes in its cache and the adapters in
its slots. `holders` remembers these, bounded by what a replica can keep; `blocks` turns a prompt into the keys of its
prefixes.
"""
