"""The kernels of `low_rank` for steps in which each token has at most one adapter (BGMV of arXiv 2310.18547).

No launch depends on which adapters these are, so that a step can be captured: the slot of each token is on the device.
Sums over the inputs are split, so that few tokens occupy a GPU; the splits are added in one order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.low_rank import TokenSlots

RANKS = 16
INPUTS = 256
OUTPUTS = 128
SPLITS = 8


@triton.jit
def _shrink(
    x,
    x_stride,
    h,
    slots,
    weights,
    table,
    table_stride,
    ranks,
    inputs: tl.constexpr,
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """h[token, split] = w · x[token] aᵀ over a split of the inputs, for RANKS ranks. h [T, SPLITS, ranks]."""
    token, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    slot = tl.load(slots + token)
    if slot >= 0:
        row = table + slot.to(tl.int64) * table_stride
        rank = tl.load(row + 1)
        if tl.program_id(1) * RANKS < rank:
            some = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
            a = tl.load(row).to(tl.pointer_type(x.dtype.element_ty))
            sums = tl.full((RANKS, INPUTS), 0, tl.float32)
            for first in range(0, inputs, INPUTS * SPLITS):
                at = first + split * INPUTS + tl.arange(0, INPUTS)
                some_x = tl.load(x + token * x_stride + at, mask=at < inputs, other=0.0).to(tl.float32)
                some_a = tl.load(
                    a + some[:, None].to(tl.int64) * inputs + at[None],
                    mask=(some[:, None] < rank) & (at[None] < inputs),
                    other=0.0,
                )
                sums += some_a.to(tl.float32) * some_x[None]
            total = tl.sum(sums, 1) * tl.load(weights + token)
            tl.store(h + (token * SPLITS + split) * ranks + some, total, mask=(some < rank) & (some < ranks))


@triton.jit
def _expand(
    y,
    y_stride,
    h,
    slots,
    weights,
    table,
    table_stride,
    ranks,
    slices,
    kind,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    HEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """y[token] = y · (1 + w (scale - 1)) + w · shift + h[token] bᵀ for OUTPUTS outputs of a slice."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    start = tl.load(slices + 2 * tl.program_id(1))
    width = tl.load(slices + 2 * tl.program_id(1) + 1) - start
    if (slot >= 0) & (tl.program_id(2) * OUTPUTS < width):
        row = table + slot.to(tl.int64) * table_stride + HEAD + tl.program_id(1) * COLUMNS
        b_at, scale_at, shift_at = tl.load(row), tl.load(row + 1), tl.load(row + 2)
        if (b_at != 0) | (scale_at != 0) | (shift_at != 0):
            rank, first_rank = tl.load(row + 3), tl.load(row + 4)
            outputs = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
            inside = outputs < width
            weight = tl.load(weights + token)
            b = b_at.to(tl.pointer_type(kind.dtype.element_ty))
            sums = tl.full((OUTPUTS, RANKS), 0, tl.float32)
            first = tl.full((), 0, tl.int64)
            while first < rank:  # Triton's interpreter has no range() up to a loaded value
                at = first + tl.arange(0, RANKS)
                splits = tl.arange(0, SPLITS)
                parts = tl.load(
                    h + (token * SPLITS + splits[:, None]) * ranks + first_rank + at[None],
                    mask=(at[None] < rank) & (first_rank + at[None] < ranks),
                    other=0.0,
                )
                some_h = tl.sum(parts, 0).to(kind.dtype.element_ty).to(tl.float32)
                some_b = tl.load(
                    b + outputs[:, None].to(tl.int64) * rank + at[None],
                    mask=inside[:, None] & (at[None] < rank),
                    other=0.0,
                )
                sums += some_b.to(tl.float32) * some_h[None]
                first += RANKS
            to = y + token * y_stride + start + outputs
            value = tl.load(to, mask=inside, other=0.0).to(tl.float32)
            if scale_at != 0:
                scale = tl.load(scale_at.to(tl.pointer_type(tl.float32)) + outputs, mask=inside, other=1.0)
                value = value * (1.0 + weight * (scale - 1.0))
            if shift_at != 0:
                shift = tl.load(shift_at.to(tl.pointer_type(tl.float32)) + outputs, mask=inside, other=0.0)
                value = value + weight * shift
            tl.store(to, (value + tl.sum(sums, 1)).to(y.dtype.element_ty), mask=inside)


def apply(
    y: Tensor, x: Tensor, slots: TokenSlots, table: Tensor, edges: Tensor, widest: int, layout: dict[str, Any]
) -> None:
    """Apply the adapters to y [T, outputs] in place. table, edges, layout: of `low_rank.TritonAdapterSlots`.

    widest: outputs of the widest slice. No adapter has more ranks than slots.max_rank in each slice.
    """
    inputs, slices = x.shape[1], len(edges) // 2
    ranks = slots.max_rank * slices
    h = torch.empty(len(y), SPLITS, ranks, dtype=torch.float32, device=y.device)
    used = slots.token_slots, slots.token_weights, table, table.stride(0), ranks
    _shrink[len(y), triton.cdiv(ranks, RANKS), SPLITS](
        *(x, x.stride(0), h, *used, inputs), RANKS=RANKS, INPUTS=INPUTS, SPLITS=SPLITS
    )
    _expand[len(y), slices, triton.cdiv(widest, OUTPUTS)](
        *(y, y.stride(0), h, *used, edges, x), RANKS=RANKS, OUTPUTS=OUTPUTS, SPLITS=SPLITS, **layout
    )
