"""What the kernels of several ops with state compute."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """log(1 + exp(x)) of float32 values."""
    small = tl.exp(-tl.abs(x))
    return tl.maximum(x, 0.0) + tl.where(small < 1e-4, small * (1.0 - 0.5 * small), tl.log(1.0 + small))


@triton.jit
def row_of(starts, slots):
    """First token, end, and slot of the program's row, which is its first coordinate."""
    row = tl.program_id(0)
    return tl.load(starts + row), tl.load(starts + row + 1), tl.load(slots + row)
