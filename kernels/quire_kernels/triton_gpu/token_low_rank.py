"""The kernels of `low_rank` for steps in which each token has at most one adapter (BGMV of arXiv 2310.18547).

No launch depends on which adapters these are, so that a step can be captured: the slot of each token is on the device.
Sums over the inputs are split, so that few tokens occupy a GPU; the splits are added in one order.

Where the device can, a launch begins while the one before it runs, and reads the adapters' matrices meanwhile:
`_shrink` while y is computed, `_expand` while `_shrink` runs. What computes y must therefore begin after x is complete.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.low_rank import TokenSlots
from quire_kernels.triton_gpu.device import launches_overlap

RANKS = 16
INPUTS = 512
"""Inputs of a program, which it reads at once."""

OUTPUTS = 512
"""Outputs of a program."""

SHRINK_WARPS, EXPAND_WARPS = 4, 2
"""Of a program. A thread of `_expand` then has all ranks of its outputs: it adds them without the others."""


@triton.jit
def _is_first_program():
    return tl.program_id(0) + tl.program_id(1) + tl.program_id(2) == 0


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
    OVERLAPS: tl.constexpr,
):
    """h[token, split] = w · x[token] aᵀ over a split of INPUTS inputs, for RANKS ranks. h [T, splits, ranks].

    Grid: tokens, blocks of ranks, splits. The first program and all that write wait for the launch before: it may still
    read the memory of h, and `_expand` counts on its end.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
    token, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    at = split * INPUTS + tl.arange(0, INPUTS)
    some_x = tl.load(x + token * x_stride + at, mask=at < inputs, other=0.0).to(tl.float32)
    slot = tl.load(slots + token)
    if slot >= 0:
        row = table + slot.to(tl.int64) * table_stride
        address, rank = tl.load(row), tl.load(row + 1)
        if tl.program_id(1) * RANKS < rank:
            some = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
            a = tl.multiple_of(address.to(tl.pointer_type(x.dtype.element_ty)), 16)
            some_a = tl.load(
                a + some[:, None].to(tl.int64) * inputs + at[None],
                mask=(some[:, None] < rank) & (at[None] < inputs),
                other=0.0,
            )
            total = tl.sum(some_a.to(tl.float32) * some_x[None], 1) * tl.load(weights + token)
            to = h + (token * tl.num_programs(2) + split) * ranks + some
            if OVERLAPS:
                tl.extra.cuda.gdc_wait()
            tl.store(to, total, mask=(some < rank) & (some < ranks))
        elif OVERLAPS & _is_first_program():
            tl.extra.cuda.gdc_wait()
    elif OVERLAPS & _is_first_program():
        tl.extra.cuda.gdc_wait()


@triton.jit
def _matrix_of_ranks(b, first, rank, width, outputs, inside, RANKS: tl.constexpr):
    """RANKS rows of bᵀ from `first` on, [RANKS, OUTPUTS]."""
    some = first + tl.arange(0, RANKS)
    at = some[:, None].to(tl.int64) * width + outputs[None]
    return tl.load(b + at, mask=(some < rank)[:, None] & inside[None], other=0.0)


@triton.jit
def _product(some_b, h, splits, ranks, first_rank, first, rank, RANKS: tl.constexpr, SPLITS: tl.constexpr):
    """Rows of bᵀ times h of the same ranks, which is summed over the splits. first_rank: of the slice."""
    some, split = first + tl.arange(0, RANKS), tl.arange(0, SPLITS)
    parts = tl.load(
        h + split[:, None] * ranks + first_rank + some[None],
        mask=(split < splits)[:, None] & ((some < rank) & (first_rank + some < ranks))[None],
        other=0.0,
    )
    some_h = tl.sum(parts, 0).to(some_b.dtype).to(tl.float32)
    return tl.sum(some_b.to(tl.float32) * some_h[:, None], 0)


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
    splits,
    chunks,
    kind,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    UNIT: tl.constexpr,
    HEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """y[token] = y · (1 + w (scale - 1)) + w · shift + h[token] bᵀ for a chunk of up to OUTPUTS outputs of a slice.

    chunks: int32 [chunks, 4], the slice, its start in y, its width, and the chunk's first output; start and width are
    multiples of UNIT. Grid: tokens, chunks. What follows counts on the end of `_shrink` too: the first
    program and all that write wait for it.
    """
    token = tl.program_id(0).to(tl.int64)
    chunk = chunks + tl.program_id(1) * 4
    part = tl.load(chunk)
    start, width = tl.multiple_of(tl.load(chunk + 1), UNIT), tl.multiple_of(tl.load(chunk + 2), UNIT)
    outputs = tl.multiple_of(tl.load(chunk + 3), OUTPUTS) + tl.arange(0, OUTPUTS)
    slot = tl.load(slots + token)
    row = table + tl.maximum(slot, 0).to(tl.int64) * table_stride + HEAD + part * COLUMNS
    b_at, scale_at, shift_at = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    if (slot >= 0) & ((b_at != 0) | (scale_at != 0) | (shift_at != 0)):
        rank, first_rank = tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)
        inside = outputs < width
        b = tl.multiple_of(b_at.to(tl.pointer_type(kind.dtype.element_ty)), 16)
        some_b = _matrix_of_ranks(b, 0, rank, width, outputs, inside, RANKS)
        to = y + token * y_stride + start + outputs
        value = tl.load(to, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weights + token)
        if scale_at != 0:
            scale = tl.load(tl.multiple_of(scale_at.to(tl.pointer_type(tl.float32)), 16) + outputs, mask=inside)
            value = value * (1.0 + weight * (scale - 1.0))
        if shift_at != 0:
            shift = tl.load(tl.multiple_of(shift_at.to(tl.pointer_type(tl.float32)), 16) + outputs, mask=inside)
            value = value + weight * shift
        if OVERLAPS:
            tl.extra.cuda.gdc_wait()
        h = h + token * splits * ranks
        sums = _product(some_b, h, splits, ranks, first_rank, 0, rank, RANKS, SPLITS)
        first = rank * 0 + RANKS
        while first < rank:  # Triton's interpreter has no range() up to a loaded value
            some_b = _matrix_of_ranks(b, first, rank, width, outputs, inside, RANKS)
            sums += _product(some_b, h, splits, ranks, first_rank, first, rank, RANKS, SPLITS)
            first += RANKS
        tl.store(to, (value + sums).to(y.dtype.element_ty), mask=inside)
    elif OVERLAPS & _is_first_program():
        tl.extra.cuda.gdc_wait()


def apply(y: Tensor, x: Tensor, slots: TokenSlots, table: Tensor, chunks: Tensor, layout: dict[str, Any]) -> None:
    """Apply the adapters to y [T, outputs] in place. table, layout: of `low_rank.TritonAdapterSlots`.

    chunks: of up to OUTPUTS outputs, see `_expand`. No adapter has more ranks than slots.max_rank in each slice.
    """
    inputs, slices = x.shape[1], (table.shape[1] - layout["HEAD"]) // layout["COLUMNS"]
    ranks, splits = slots.max_rank * slices, triton.cdiv(inputs, INPUTS)
    h = torch.empty(len(y), splits, ranks, dtype=torch.float32, device=y.device)
    used = slots.token_slots, slots.token_weights, table, table.stride(0), ranks
    overlaps = launches_overlap(y.device)
    launch = {"RANKS": RANKS, "OVERLAPS": overlaps, "launch_pdl": overlaps}
    _shrink[len(y), triton.cdiv(ranks, RANKS), splits](
        *(x, x.stride(0), h, *used, inputs), INPUTS=INPUTS, num_warps=SHRINK_WARPS, **launch
    )
    _expand[len(y), len(chunks)](
        *(y, y.stride(0), h, *used, splits, chunks, x),
        **{"OUTPUTS": OUTPUTS, "SPLITS": triton.next_power_of_2(splits), "num_warps": EXPAND_WARPS, **layout, **launch},
    )
