"""The ops `rms_norm`, `add_rms_norm` and `layer_norm` for GPUs: a program normalizes one row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.triton_gpu.device import await_previous_launch, overlapping

BLOCK = 4096
"""Elements of a row that a program reads at a time; it reads longer rows twice."""


@triton.jit
def normalize(
    x,
    x_outer,
    x_inner,
    inner,
    residual,
    weight,
    bias,
    out,
    width,
    eps,
    BLOCK: tl.constexpr,
    FITS: tl.constexpr,
    ADDS: tl.constexpr,
    CENTERS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """out = norm(x) * weight + bias. ADDS: of residual + x, rounded and stored in residual. CENTERS: of x - mean(x).

    FITS: a row has at most BLOCK elements. Row r of x begins at r // inner * x_outer + r % inner * x_inner; rows of
    residual and out follow each other.
    """
    await_previous_launch(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    x += row // inner * x_outer + row % inner * x_inner
    residual += row * width
    out += row * width
    column = tl.arange(0, BLOCK)
    mean = 0.0
    if FITS:
        inside = column < width
        h = _summed(x, residual, column, inside, ADDS)
        if CENTERS:
            mean = tl.sum(h, 0) / width
            h = tl.where(inside, h - mean, 0.0)
        scale = tl.rsqrt(tl.sum(h * h, 0) / width + eps)
        _store(out, column, inside, h * scale, weight, bias, HAS_WEIGHT, HAS_BIAS)
    else:
        if CENTERS:
            sums = tl.full((BLOCK,), 0, tl.float32)
            for first in range(0, width, BLOCK):
                sums += tl.load(x + first + column, mask=first + column < width, other=0.0).to(tl.float32)
            mean = tl.sum(sums, 0) / width
        squares = tl.full((BLOCK,), 0, tl.float32)
        for first in range(0, width, BLOCK):
            inside = first + column < width
            h = _summed(x, residual, first + column, inside, ADDS)
            h = tl.where(inside, h - mean, 0.0)
            squares += h * h
        scale = tl.rsqrt(tl.sum(squares, 0) / width + eps)
        for first in range(0, width, BLOCK):
            inside = first + column < width
            # a thread reads of the residual what it stored itself
            h = tl.load((residual if ADDS else x) + first + column, mask=inside, other=0.0).to(tl.float32)
            h = (h - mean) * scale
            _store(out, first + column, inside, h, weight, bias, HAS_WEIGHT, HAS_BIAS)


@triton.jit
def _summed(x, residual, at, inside, ADDS: tl.constexpr):
    """Elements of x in float32; with ADDS those of residual + x, which are stored in residual."""
    found = tl.load(x + at, mask=inside, other=0.0)
    if ADDS:
        found = (found.to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)).to(found.dtype)
        tl.store(residual + at, found, mask=inside)
    return found.to(tl.float32)


@triton.jit
def _store(out, column, inside, h, weight, bias, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr):
    if HAS_WEIGHT:
        h = h * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        h = h + tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + column, h.to(out.dtype.element_ty), mask=inside)


@capturable
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _launch(x, None, weight, None, eps, centers=False)


@capturable
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    residual = residual.contiguous()
    return _launch(x, residual, weight, None, eps, centers=False), residual


@capturable
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return _launch(x, None, weight, bias, eps, centers=True)


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, centers: bool
) -> Tensor:
    width = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = x if x.stride(-1) == 1 and x.dim() in (2, 3) else x.reshape(-1, width).contiguous()
    outer, inner = (x.stride(0), x.shape[1]) if x.dim() == 3 else (x.stride(0), 1)
    if not x.numel():
        return out
    block = min(BLOCK, triton.next_power_of_2(width))
    normalize[x.numel() // width,](
        *(x, outer, x.stride(1) if x.dim() == 3 else 0, inner),
        *(x if residual is None else residual, x if weight is None else weight.contiguous()),
        *(x if bias is None else bias.contiguous(), out, width, eps),
        BLOCK=block,
        FITS=width <= block,
        ADDS=residual is not None,
        CENTERS=centers,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        num_warps=max(1, min(8, block // 256)),
        **overlapping(x.device),
    )
    return out
