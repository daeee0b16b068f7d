"""Quantized models: `checkpoint_format` for checkpoints that are stored in few bits, `at_load` for `--quantization`.

Both come from plugins (`quire.records.Quantization`). A checkpoint's format tells `quire_models.loading` which tensors
make a weight and reads them; a quantization at loading is the op that binds matrices in place of `linear`. Either way
`quire_models.modules.projection.Projection` holds what the op returns.
"""
