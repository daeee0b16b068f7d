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
from quire_kernels.triton_gpu.token_blocks import TokenBlocks, blocks_of

RANKS = 16
INPUTS = 512
"""Inputs of a program, which it reads at once."""

OUTPUTS = 512
"""Outputs of a program."""

BLOCK, MAX_PROGRAMS = 4, 64
"""Where there are more tokens than MAX_PROGRAMS, those of an adapter are computed BLOCK at a time, and read it once."""

SHRINK_WARPS, EXPAND_WARPS = 4, 2
"""Of a program. A thread of `_expand` then has all ranks of its outputs: it adds them without the others."""


@triton.jit
def _block(slots, tokens, blocks, turn, SIZE: tl.constexpr):
    """The slot, the first entry and the number of tokens that a program computes in a turn; of SIZE 1, a token each."""
    at = turn * tl.num_programs(0) + tl.program_id(0)
    if SIZE == 1:
        first, number, slot = at, 1, tl.load(slots + at)
    else:
        slot, first, number = tl.load(blocks + at * 3), tl.load(blocks + at * 3 + 1), tl.load(blocks + at * 3 + 2)
    return tl.where(number > 0, slot, -1), first, number


@triton.jit
def _token(tokens, first, number, j: tl.constexpr, SIZE: tl.constexpr):
    """The j-th token of a block; if it has fewer, one of the step."""
    token = first
    if SIZE > 1:
        token = tl.load(tokens + first + j, mask=j < number, other=0)
    return token.to(tl.int64)


@triton.jit
def _shrink(
    x,
    x_stride,
    h,
    slots,
    weights,
    tokens,
    blocks,
    table,
    table_stride,
    ranks,
    inputs: tl.constexpr,
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    TURNS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """h[token, split] = w · x[token] aᵀ over a split of INPUTS inputs, for RANKS ranks. h [T, splits, ranks].

    Grid: blocks of one turn, blocks of ranks, splits. The first program and all that write wait for the launch before:
    it may still read the memory of h, and `_expand` counts on its end.
    """
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
    split = tl.program_id(2)
    at = split * INPUTS + tl.arange(0, INPUTS)
    for turn in range(TURNS):
        slot, first, number = _block(slots, tokens, blocks, turn, SIZE)
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
                totals = ()
                for j in tl.static_range(SIZE):
                    token = _token(tokens, first, number, j, SIZE)
                    some_x = tl.load(x + token * x_stride + at, mask=at < inputs, other=0.0).to(tl.float32)
                    totals += (tl.sum(some_a.to(tl.float32) * some_x[None], 1) * tl.load(weights + token),)
                if OVERLAPS:
                    tl.extra.cuda.gdc_wait()
                for j in tl.static_range(SIZE):
                    token = _token(tokens, first, number, j, SIZE)
                    to = h + (token * tl.num_programs(2) + split) * ranks + some
                    tl.store(to, totals[j], mask=(some < rank) & (some < ranks) & (j < number))
    if OVERLAPS & (tl.program_id(0) + tl.program_id(1) + split == 0):
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
def _scaled(value, weight, scale_at, shift_at, outputs, inside):
    """value · (1 + w (scale - 1)) + w · shift; an address of 0 is none."""
    if scale_at != 0:
        scale = tl.load(tl.multiple_of(scale_at.to(tl.pointer_type(tl.float32)), 16) + outputs, mask=inside)
        value = value * (1.0 + weight * (scale - 1.0))
    if shift_at != 0:
        shift = tl.load(tl.multiple_of(shift_at.to(tl.pointer_type(tl.float32)), 16) + outputs, mask=inside)
        value = value + weight * shift
    return value


@triton.jit
def _expand(
    y,
    y_stride,
    h,
    slots,
    weights,
    tokens,
    blocks,
    table,
    table_stride,
    ranks,
    splits,
    chunks,
    kind,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    SIZE: tl.constexpr,
    TURNS: tl.constexpr,
    UNIT: tl.constexpr,
    HEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """y[token] = y · (1 + w (scale - 1)) + w · shift + h[token] bᵀ for a chunk of up to OUTPUTS outputs of a slice.

    chunks: int32 [chunks, 4], the slice, its start in y, its width, and the chunk's first output; start and width are
    multiples of UNIT. Grid: blocks of one turn, chunks. What follows counts on the end of `_shrink` too: the first
    program and all that write wait for it.
    """
    chunk = chunks + tl.program_id(1) * 4
    part = tl.load(chunk)
    start, width = tl.multiple_of(tl.load(chunk + 1), UNIT), tl.multiple_of(tl.load(chunk + 2), UNIT)
    outputs = tl.multiple_of(tl.load(chunk + 3), OUTPUTS) + tl.arange(0, OUTPUTS)
    inside = outputs < width
    for turn in range(TURNS):
        slot, first_entry, number = _block(slots, tokens, blocks, turn, SIZE)
        row = table + tl.maximum(slot, 0).to(tl.int64) * table_stride + HEAD + part * COLUMNS
        b_at, scale_at, shift_at = tl.load(row), tl.load(row + 1), tl.load(row + 2)
        if (slot >= 0) & ((b_at != 0) | (scale_at != 0) | (shift_at != 0)):
            rank, first_rank = tl.load(row + 3).to(tl.int32), tl.load(row + 4).to(tl.int32)
            b = tl.multiple_of(b_at.to(tl.pointer_type(kind.dtype.element_ty)), 16)
            some_b = _matrix_of_ranks(b, 0, rank, width, outputs, inside, RANKS)
            if OVERLAPS:
                tl.extra.cuda.gdc_wait()
            values = ()
            for j in tl.static_range(SIZE):
                token = _token(tokens, first_entry, number, j, SIZE)
                value = tl.load(y + token * y_stride + start + outputs, mask=inside, other=0.0).to(tl.float32)
                weight = tl.load(weights + token)
                value = _scaled(value, weight, scale_at, shift_at, outputs, inside)
                of_token = h + token * splits * ranks
                values += (value + _product(some_b, of_token, splits, ranks, first_rank, 0, rank, RANKS, SPLITS),)
            first = rank * 0 + RANKS
            while first < rank:  # Triton's interpreter has no range() up to a loaded value
                some_b = _matrix_of_ranks(b, first, rank, width, outputs, inside, RANKS)
                sums = ()
                for j in tl.static_range(SIZE):
                    of_token = h + _token(tokens, first_entry, number, j, SIZE) * splits * ranks
                    found = _product(some_b, of_token, splits, ranks, first_rank, first, rank, RANKS, SPLITS)
                    sums += (values[j] + found,)
                values = sums
                first += RANKS
            for j in tl.static_range(SIZE):
                to = y + _token(tokens, first_entry, number, j, SIZE) * y_stride + start + outputs
                tl.store(to, values[j].to(y.dtype.element_ty), mask=inside & (j < number))
    if OVERLAPS & (tl.program_id(0) + tl.program_id(1) == 0):
        tl.extra.cuda.gdc_wait()


def apply(y: Tensor, x: Tensor, slots: TokenSlots, table: Tensor, chunks: Tensor, layout: dict[str, Any]) -> None:
    """Apply the adapters to y [T, outputs] in place. table, layout: of `low_rank.TritonAdapterSlots`.

    chunks: of up to OUTPUTS outputs, see `_expand`. No adapter has more ranks than slots.max_rank in each slice.
    """
    inputs, slices = x.shape[1], (table.shape[1] - layout["HEAD"]) // layout["COLUMNS"]
    ranks, splits = slots.max_rank * slices, triton.cdiv(inputs, INPUTS)
    h = torch.empty(len(y), splits, ranks, dtype=torch.float32, device=y.device)
    size, programs = (1, len(y)) if len(y) <= MAX_PROGRAMS else (BLOCK, MAX_PROGRAMS)
    of = slots.token_slots
    found = TokenBlocks(of, of) if size == 1 else blocks_of(slots, size, programs)
    used = of, slots.token_weights, found.tokens, found.blocks, table, table.stride(0), ranks
    overlaps = launches_overlap(y.device)
    turns = len(found.blocks) // programs
    launch = {"RANKS": RANKS, "SIZE": size, "TURNS": turns, "OVERLAPS": overlaps, "launch_pdl": overlaps}
    _shrink[programs, triton.cdiv(ranks, RANKS), splits](
        *(x, x.stride(0), h, *used, inputs), INPUTS=INPUTS, num_warps=SHRINK_WARPS, **launch
    )
    _expand[programs, len(chunks)](
        *(y, y.stride(0), h, *used, splits, chunks, x),
        **{"OUTPUTS": OUTPUTS, "SPLITS": triton.next_power_of_2(splits), "num_warps": EXPAND_WARPS, **layout, **launch},
    )
