"""The ops `rms_norm`, `add_rms_norm` and `layer_norm` for GPUs: a program normalizes one row, read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.pytorch import ops as torch_ops

WIDEST = 1 << 15
"""Elements of the widest row that a program holds in registers; wider ones are left to torch."""


@triton.jit
def _rms_norm(
    x, x_outer, x_inner, residual, weight, out, inner, width, eps, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr
):
    """Row r of x begins at r // inner · x_outer + r % inner · x_inner; rows of residual and out follow each other."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row // inner * x_outer + row % inner * x_inner + column, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        at = residual + row * width + column
        value = (value.to(tl.float32) + tl.load(at, mask=inside, other=0.0).to(tl.float32)).to(x.dtype.element_ty)
        tl.store(at, value, mask=inside)
    h = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(h * h, 0) / width + eps)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (h * scale * factor).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _layer_norm(
    x,
    x_outer,
    x_inner,
    weight,
    bias,
    out,
    inner,
    width,
    eps,
    BLOCK: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    h = tl.load(x + row // inner * x_outer + row % inner * x_inner + column, mask=inside, other=0.0).to(tl.float32)
    h = tl.where(inside, h - tl.sum(h, 0) / width, 0.0)
    h = h * tl.rsqrt(tl.sum(h * h, 0) / width + eps)
    if HAS_WEIGHT:
        h = h * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        h = h + tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, h.to(out.dtype.element_ty), mask=inside)


@capturable
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.shape[-1] > WIDEST:
        return torch_ops.rms_norm(x, weight, eps)
    x, outer, inner_stride, inner = _rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        width = x.shape[-1]
        _rms_norm[out.numel() // width,](
            *(x, outer, inner_stride, x, weight, out, inner, width, eps), **_shape(width), HAS_RESIDUAL=False
        )
    return out


@capturable
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    width = x.shape[-1]
    if width > WIDEST:
        return torch_ops.add_rms_norm(x, residual, weight, eps)
    residual = residual.contiguous()
    x, outer, inner_stride, inner = _rows(x)
    out = torch.empty_like(residual)
    if out.numel():
        _rms_norm[out.numel() // width,](
            *(x, outer, inner_stride, residual, weight, out, inner, width, eps), **_shape(width), HAS_RESIDUAL=True
        )
    return out, residual


@capturable
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    width = x.shape[-1]
    if width > WIDEST:
        return torch_ops.layer_norm(x, weight, bias, eps)
    x, outer, inner_stride, inner = _rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        _layer_norm[out.numel() // width,](
            *(x, outer, inner_stride, x if weight is None else weight, x if bias is None else bias),
            *(out, inner, width, eps),
            **_shape(width),
            HAS_WEIGHT=weight is not None,
            HAS_BIAS=bias is not None,
        )
    return out


def _rows(x: Tensor) -> tuple[Tensor, int, int, int]:
    """x, strides of its second and third last dimension, and the size of the former; all rows as one pattern."""
    if x.stride(-1) != 1 or x.dim() > 3:
        x = x.contiguous()
    if x.is_contiguous() or x.dim() == 1:
        return x, x.shape[-1], 0, 1
    return (x, x.stride(0), 0, 1) if x.dim() == 2 else (x, x.stride(0), x.stride(1), x.shape[1])


def _shape(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}
