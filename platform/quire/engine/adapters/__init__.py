"""The adapters of one model: loading them, keeping them in host memory, and giving requests slots on the device.

`registry` maps names to revisions and loads, replaces and unloads them; `loader` reads their folders in background
threads; `host_cache` decides which stay in host memory; `admission` decides which requests get adapter slots.
`engine_adapters` is what the engine calls when a request begins and ends.

A request names adapters, `EngineAdapters.acquire` fixes their revisions, `try_admit` gets it slots, and `mapping` tells
the attached runtimes in every step which slots the tokens of each sequence use. No module here depends on a kind of
adapter: reading, packing and computing are done by runtimes that plugins bring (`attached_runtimes`).
"""
