"""Quantizations: `int8` at loading, and the quantized checkpoint formats, one plugin for each `quant_method`.

The plugins import no torch; `quire_plugins.quantization.formats` has the code that reads tensors.
"""
