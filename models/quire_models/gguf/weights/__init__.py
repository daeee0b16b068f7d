"""The tensors of a GGUF model, as transformers names and arranges them.

`names` has a table for each architecture, `tensors` the mapping that weights are loaded from; `unpack` and `unpack_k`
turn blocks into a `QuantizedMatrix`.
"""
