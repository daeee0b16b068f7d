"""Products with matrices of few bits: how these lie on the device, and the kernels that read them.

matrix   `DeviceMatrix`: codes packed in words, scales and offsets
kernels  products of one row and of tiles of rows, and the dequantized matrix
inputs   what is done to the inputs before: rounding to 8 bits, reordering
op       `linear_quantized`
experts  products of the experts of a mixture, for `moe`
int8     `linear_int8`
"""
