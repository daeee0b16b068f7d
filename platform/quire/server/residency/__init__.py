"""Which models are in memory: loaded when a request asks for them, unloaded when others need the memory.

`policy` decides which models are unloaded and which is loaded next, from data alone. `size_estimate` reads the headers
of files. `registration` is what the server keeps of a model, loaded or not; `registrations` finds it by name.
`residency.Residency` carries the decisions out, `waiting` bounds the requests that wait, and `memory_meter` measures
the processes.
"""
