"""Reads GGUF files, the format of llama.cpp: weights, config and tokenizer in one file or in numbered parts.

`reader` parses the header and checks it against the size of the file; `cursor` reads its values under limits, `types`
lists the types of tensors. `parts` finds the parts of a model. `unpack` and `unpack_k` turn blocks into a
`QuantizedMatrix`. `names` and `layouts` say what each tensor is in transformers; `tensors` offers them under these
names, as `quire_models.loading.tensor_files` does. `config`, `rope`, `tokenizer`, `vocabulary` and `splits` write what a
model folder has beside its weights, and `folder` makes that folder. Every error is a `CheckpointError` that names the
file and the tensor or key.

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""
