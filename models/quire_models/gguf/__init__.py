"""Reads GGUF files, the format of llama.cpp: weights, config and tokenizer in one file or in numbered parts.

`file` parses headers, `weights` offers tensors, `text` makes a tokenizer, `config` and `rope` make a config, and
`folder` writes what a model folder has beside its weights. Every error is a `CheckpointError` that names the file and
the tensor or key.

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""
