"""Linear layers with packed weights.

`packed` is the default, in float32 or bfloat16; `compressed` stores bfloat16 in twelve bits per element without loss;
`int8` is quantized; `split_bf16` computes float32 products in AMX tiles. Each binds a weight once and is then called
with the inputs of every step.
"""
