"""The ops `act`, `gated_act` and `scale_logits` for GPUs: elementwise, in one launch each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.triton_gpu.device import await_previous_launch, overlapping

BLOCK = 1024
"""Elements of a program."""


@triton.jit
def tanh(x):
    """Correct to about 1e-7, with the sign apart so that small values keep their digits."""
    size = tl.abs(x)
    small = size < 0.02
    shrunk = tl.exp2(size * -2.8853900817779268)
    square = tl.minimum(size, 1.0) * tl.minimum(size, 1.0)
    found = tl.where(small, size * (1.0 - square * (0.33333333 - square * 0.13333333)), (1.0 - shrunk) / (1.0 + shrunk))
    return tl.where(x < 0, -found, found)


@triton.jit
def sigmoid(x):
    shrunk = tl.exp2(tl.abs(x) * -1.4426950408889634)
    return tl.where(x < 0, shrunk, 1.0) / (1.0 + shrunk)


@triton.jit
def activated(x, ACT: tl.constexpr):
    """The activation of float32 values; its names are those of `quire_kernels.ops.ACTS`."""
    if ACT == "silu":
        return x * sigmoid(x)
    elif ACT == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif ACT == "relu":
        return tl.where(x < 0, 0.0, x)
    elif ACT == "relu2":
        return tl.where(x < 0, 0.0, x) * tl.where(x < 0, 0.0, x)
    elif ACT == "quick_gelu":
        return x * sigmoid(1.702 * x)
    elif ACT == "sigmoid":
        return sigmoid(x)
    elif ACT == "tanh":
        return tanh(x)
    else:
        tl.static_assert(ACT == "identity", "unknown activation")
        return x


@triton.jit
def activate(x, out, x_row, width, BLOCK: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, OVERLAPS: tl.constexpr):
    """Grid: rows, blocks of `width` outputs. GATED: the rows of x are 2 * width wide, gates before what they gate."""
    await_previous_launch(OVERLAPS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    row = tl.program_id(0).to(tl.int64)
    at = x + row * x_row + column
    found = activated(tl.load(at, mask=inside, other=0.0).to(tl.float32), ACT)
    if GATED:
        found = found.to(x.dtype.element_ty).to(tl.float32) * tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, found.to(out.dtype.element_ty), mask=inside)


@triton.jit
def scale_and_cap(x, out, count, scale, softcap, BLOCK: tl.constexpr, HAS_CAP: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    found = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * scale
    if HAS_CAP:
        found = softcap * tanh(found / softcap)
    tl.store(out + at, found, mask=inside)


@capturable
def act(x: Tensor, act: str) -> Tensor:
    x = x.contiguous()
    width = x.shape[-1]
    if x.numel():
        activate[x.numel() // width, triton.cdiv(width, BLOCK)](
            *(x, x, width, width, BLOCK, act, False), **overlapping(x.device)
        )
    return x


@capturable
def gated_act(gate_up: Tensor, act: str) -> Tensor:
    width = gate_up.shape[-1] // 2
    flat = gate_up.reshape(-1, 2 * width)
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    if out.numel():
        activate[len(flat), triton.cdiv(width, BLOCK)](
            *(flat, out, flat.stride(0), width, BLOCK, act, True), **overlapping(out.device)
        )
    return out


@capturable
def scale_logits(x: Tensor, scale: float = 1.0, softcap: float | None = None) -> Tensor:
    if scale == 1.0 and softcap is None:
        return x.float()
    x = x.contiguous()
    out = x if x.dtype == torch.float32 else torch.empty_like(x, dtype=torch.float32)
    if x.numel():
        scale_and_cap[triton.cdiv(x.numel(), BLOCK),](
            x, out, x.numel(), scale, 1.0 if softcap is None else softcap, BLOCK, softcap is not None
        )
    return out
