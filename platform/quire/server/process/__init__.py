"""The life of the server's process: start, serve, shut down.

`start.run_server` launches the engine process and then hands over to `serve`, which loads the front ends of the models
(`frontend_loader`), listens, and drains at the end; `shutdown` handles signals and bounds the time of the end.
`startup_adapters` parses --lora-modules, `workers` and `plugin_threads` are thread pools, and `allocator` sets malloc's
options.
"""
