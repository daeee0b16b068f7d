"""The kernels of `low_rank` for steps in which each token has at most one adapter (BGMV of arXiv 2310.18547).

No launch depends on which adapters these are, so that a step can be captured: the slot of each token is on the device.
Sums over the inputs are split, so that few tokens occupy a GPU; the splits are added in one order.

Where the device can, programs of `_expand` begin while those of `_shrink` run, and find the matrices b meanwhile.
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
STEP = 256
"""Inputs, or outputs, of which a program reads all ranks at a time, while the next ones are on the way."""

INPUTS = 1024, 2048
"""Inputs of a program, of few and of many."""

OUTPUTS = 1024
"""Outputs of a program."""

MANY = 8192

STAGES = {1: 4, 2: 3}
"""Blocks of ranks -> steps that are on the way at a time; 1 for more of them, for which shared memory does not suffice.
"""


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
    STEP: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """h[token, split] = w · x[token] aᵀ over a split of INPUTS inputs, for RANKS ranks. h [T, splits, ranks].

    Grid: tokens, blocks of ranks, splits.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
    token, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    slot = tl.load(slots + token)
    if slot >= 0:
        row = table + slot.to(tl.int64) * table_stride
        address, rank = tl.load(row), tl.load(row + 1)
        if tl.program_id(1) * RANKS < rank:
            some = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
            a = tl.multiple_of(address.to(tl.pointer_type(x.dtype.element_ty)), 16)
            of_rank = a + some[:, None].to(tl.int64) * inputs
            sums = tl.full((RANKS, STEP), 0, tl.float32)
            for step in tl.range(0, INPUTS, STEP, num_stages=4):
                at = split * INPUTS + step + tl.arange(0, STEP)
                some_x = tl.load(x + token * x_stride + at, mask=at < inputs, other=0.0)
                some_a = tl.load(of_rank + at[None], mask=(some[:, None] < rank) & (at[None] < inputs), other=0.0)
                sums += some_a.to(tl.float32) * some_x.to(tl.float32)[None]
            total = tl.sum(sums, 1) * tl.load(weights + token)
            to = h + (token * tl.num_programs(2) + split) * ranks + some
            tl.store(to, total, mask=(some < rank) & (some < ranks))


@triton.jit
def _h_of_ranks(h, splits, ranks, first_rank, first, rank, RANKS: tl.constexpr, SPLITS: tl.constexpr):
    """h of RANKS ranks from `first` on, summed over the splits. first_rank: of the slice."""
    some, split = first + tl.arange(0, RANKS), tl.arange(0, SPLITS)
    parts = tl.load(
        h + split[:, None] * ranks + first_rank + some[None],
        mask=(split < splits)[:, None] & ((some < rank) & (first_rank + some < ranks))[None],
        other=0.0,
    )
    return tl.sum(parts, 0)


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
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK_BLOCKS: tl.constexpr,
    STAGES: tl.constexpr,
    UNIT: tl.constexpr,
    HEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """y[token] = y · (1 + w (scale - 1)) + w · shift + h[token] bᵀ for a chunk of up to OUTPUTS outputs of a slice.

    chunks: int32 [chunks, 4], the slice, its start in y, its width, and the chunk's first output; start and width are
    multiples of UNIT. Grid: tokens, chunks. Every program waits for `_shrink`: what follows counts on its end.
    """
    token = tl.program_id(0).to(tl.int64)
    chunk = chunks + tl.program_id(1) * 4
    part = tl.load(chunk)
    start, width = tl.multiple_of(tl.load(chunk + 1), UNIT), tl.multiple_of(tl.load(chunk + 2), UNIT)
    begin = tl.multiple_of(tl.load(chunk + 3), OUTPUTS)
    slot = tl.load(slots + token)
    weight = tl.load(weights + token)
    row = table + tl.maximum(slot, 0).to(tl.int64) * table_stride + HEAD + part * COLUMNS
    b_at, scale_at, shift_at = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    rank, first_rank = tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
    if (slot >= 0) & ((b_at != 0) | (scale_at != 0) | (shift_at != 0)):
        b = tl.multiple_of(b_at.to(tl.pointer_type(kind.dtype.element_ty)), 16)
        of_scale = tl.multiple_of(scale_at.to(tl.pointer_type(tl.float32)), 16)
        of_shift = tl.multiple_of(shift_at.to(tl.pointer_type(tl.float32)), 16)
        of_token = y + token * y_stride + start
        h = h + token * splits * ranks
        first_h = _h_of_ranks(h, splits, ranks, first_rank, 0, rank, RANKS, SPLITS)
        for step in tl.range(0, OUTPUTS, STEP, num_stages=STAGES):
            outputs = begin + step + tl.arange(0, STEP)
            inside = outputs < width
            value = tl.load(of_token + outputs, mask=inside, other=0.0).to(tl.float32)
            scale = tl.load(of_scale + outputs, mask=inside & (scale_at != 0), other=1.0)
            shift = tl.load(of_shift + outputs, mask=inside & (shift_at != 0), other=0.0)
            value = value * (1.0 + weight * (scale - 1.0)) + weight * shift
            for block in tl.static_range(RANK_BLOCKS):
                some = block * RANKS + tl.arange(0, RANKS)
                at = some[:, None].to(tl.int64) * width + outputs[None]
                some_b = tl.load(b + at, mask=(some < rank)[:, None] & inside[None], other=0.0)
                some_h = first_h
                if block > 0:
                    some_h = _h_of_ranks(h, splits, ranks, first_rank, block * RANKS, rank, RANKS, SPLITS)
                some_h = some_h.to(some_b.dtype).to(tl.float32)
                value += tl.sum(some_b.to(tl.float32) * some_h[:, None], 0)
            tl.store(of_token + outputs, value.to(y.dtype.element_ty), mask=inside)


def apply(y: Tensor, x: Tensor, slots: TokenSlots, table: Tensor, chunks: Tensor, layout: dict[str, Any]) -> None:
    """Apply the adapters to y [T, outputs] in place. table, layout: of `low_rank.TritonAdapterSlots`.

    chunks: of up to OUTPUTS outputs, see `_expand`. No adapter has more ranks than slots.max_rank in each slice.
    """
    inputs, slices = x.shape[1], (table.shape[1] - layout["HEAD"]) // layout["COLUMNS"]
    of_split = INPUTS[inputs >= MANY]
    ranks, splits, blocks = slots.max_rank * slices, triton.cdiv(inputs, of_split), triton.cdiv(slots.max_rank, RANKS)
    h = torch.empty(len(y), splits, ranks, dtype=torch.float32, device=y.device)
    used = slots.token_slots, slots.token_weights, table, table.stride(0), ranks
    overlaps = launches_overlap(y.device)
    _shrink[len(y), triton.cdiv(ranks, RANKS), splits](
        *(x, x.stride(0), h, *used, inputs), RANKS=RANKS, INPUTS=of_split, STEP=STEP, OVERLAPS=overlaps
    )
    _expand[len(y), len(chunks)](
        *(y, y.stride(0), h, *used, splits, chunks, x),
        **{"RANKS": RANKS, "OUTPUTS": OUTPUTS, "STEP": STEP, "SPLITS": triton.next_power_of_2(splits), **layout},
        **{"RANK_BLOCKS": blocks, "STAGES": STAGES.get(blocks, 1), "OVERLAPS": overlaps},
        launch_pdl=overlaps,
    )
