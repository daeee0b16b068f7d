"""What the ops of quantized matrices do to the inputs before they multiply: rounding to 8 bits, and reordering."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.int8 import MIN_ABS
from quire_kernels.quantized import X_GROUP

GROUPS = 32
"""Groups of columns that a program rounds."""

COLUMNS = 4096
"""Columns that a program reads at a time where a row has one scale."""


@triton.jit
def to_int8(values, largest, MIN_ABS: tl.constexpr):
    """round(127 / largest · values), ties to even, in float32; 0 where largest < MIN_ABS."""
    inverse = tl.where(largest < MIN_ABS, 0.0, tl.div_rn(127.0, tl.where(largest < MIN_ABS, 1.0, largest)))
    return (values * inverse + 12582912.0) - 12582912.0  # adding 1.5 · 2**23 leaves no bits for a fraction


@triton.jit
def prepare(
    x,
    x_stride,
    order,
    out,
    inputs,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    MIN_ABS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    """out[t, m] = x[t, order[m]], with ROUNDS rounded to 8 bits in groups of GROUP columns. Grid: rows, blocks."""
    t = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None]
    inside = column < inputs
    source = tl.load(order + column, mask=inside, other=0) if HAS_ORDER else column
    value = tl.load(x + t * x_stride + source, mask=inside, other=0.0).to(tl.float32)
    if ROUNDS:
        largest = tl.max(tl.abs(value), 1)[:, None]
        unknown = tl.sum(value * 0.0, 1)[:, None]  # NaN where one is not finite
        value = to_int8(value, largest, MIN_ABS) * tl.div_rn(largest, 127.0) + unknown
    tl.store(out + t * inputs + column, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def quantize_row(x, x_stride, out, scales, inputs, COLUMNS: tl.constexpr, MIN_ABS: tl.constexpr):
    """A row of x as int8 with one scale: s = max |x| / 127, NaN if one is not finite. Grid: rows."""
    t = tl.program_id(0).to(tl.int64)
    largest = tl.full((COLUMNS,), 0, tl.float32)
    unknown = tl.full((COLUMNS,), 0, tl.float32)
    for first in range(0, inputs, COLUMNS):
        at = first + tl.arange(0, COLUMNS)
        value = tl.load(x + t * x_stride + at, mask=at < inputs, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(value))
        unknown += value * 0.0
    most, wrong = tl.max(largest, 0), tl.sum(unknown, 0)
    is_finite = wrong == 0.0
    for first in range(0, inputs, COLUMNS):
        at = first + tl.arange(0, COLUMNS)
        value = tl.load(x + t * x_stride + at, mask=at < inputs, other=0.0).to(tl.float32)
        rounded = to_int8(tl.where(is_finite, value, 0.0), most, MIN_ABS)
        tl.store(out + t * inputs + at, rounded.to(tl.int8), mask=at < inputs)
    tl.store(scales + t, tl.where(most < MIN_ABS, 0.0, tl.div_rn(most, 127.0)) + wrong)


def prepared(x: Tensor, order: Tensor | None, rounds: bool) -> Tensor:
    """x [T, K] with its columns in another order and rounded, as asked for."""
    if order is None and not rounds:
        return x
    rows, inputs = x.shape
    out = torch.empty(rows, inputs, dtype=x.dtype, device=x.device)
    prepare[rows, triton.cdiv(inputs, GROUPS * X_GROUP)](
        *(x, x.stride(0), out if order is None else order, out, inputs),
        **{"GROUPS": GROUPS, "GROUP": X_GROUP, "MIN_ABS": MIN_ABS, "HAS_ORDER": order is not None, "ROUNDS": rounds},
    )
    return out


def quantized_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, K] -> int8 [T, K], and a scale for each row, float32 [T]."""
    out = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scales = torch.empty(len(x), dtype=torch.float32, device=x.device)
    block = min(COLUMNS, triton.next_power_of_2(x.shape[1]))
    quantize_row[len(x),](x, x.stride(0), out, scales, x.shape[1], COLUMNS=block, MIN_ABS=MIN_ABS)
    return out, scales
