"""Reads adapters in PEFT's format: `adapter_config.json` and a file of tensors.

In an isolated process, `targets` reads the folder: `config` checks the configuration, `tensor_files` the tensors, and
`patterns` matches module names to find the rank and alpha of each target. Here, `loader` groups the tensors by module
(`modules`), checks pairs of low-rank tensors (`lora_pairs`) against the model, and returns `AdapterWeights`.
"""
