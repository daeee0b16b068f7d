"""Quantized checkpoint formats: from the tensors of a matrix to a `quire_kernels.quantized.QuantizedMatrix`."""
