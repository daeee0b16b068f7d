"""Implementations in Triton, for NVIDIA GPUs.

`ops` offers them to `quire_kernels.select` without importing Triton; `low_rank` applies adapters (batched LoRA).
Triton compiles a kernel at its first call.
"""
