"""Data parallel: several engine processes, each with every model, behind one client (`--data-parallel-size`).

`client.ReplicatedClient` has an `EngineClient` for each, and `quire.routing` chooses where a request goes. `adapters`
keeps the adapters of all equal: one replica loads an adapter, the others read it when a request needs it. `share`
divides the cores, memory and GPUs of the machine.
"""
