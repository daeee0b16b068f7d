"""Loads a model: from a `ModelConfig` and the plugins' registry to a `LoadedModel` that the engine can run.

`load` resolves the folder, reads config.json, finds the architecture's plugin, and builds and fills the module.
`description` is what the plugin derives from the config; `op_choice` and `quantization` choose the implementations of
operations. `speech_tasks` derives the speech tasks for `ModelInfo`.
"""
