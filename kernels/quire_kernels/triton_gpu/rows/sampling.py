"""The op `sample` for GPUs: three launches, one copy of the settings, no waiting for the device.

Weights are integers up to about 2**50, so their int64 sums are exact in any order. Instead of sorting, the weights are
counted and summed by binary exponent; only weights with the exponent of a threshold are searched for it, bit by bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.sampling import Floats, Integers, device_settings

BLOCK = 4096
"""Logits of a program; at most 4096, since counts share int64 numbers with sums."""


@triton.jit
def summarize(logits, settings, tops, ids, sums, rows, vocab, row_stride, BLOCK: tl.constexpr):
    """Of BLOCK logits: the largest, its lowest id, Σ exp((logit - largest) / temperature). NaN counts as infinity.

    settings: float64 [5, rows]: temperature, uniform, top_k, top_p, min_p. Grid: rows, blocks.
    """
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    found = tl.load(logits + row.to(tl.int64) * row_stride + at, mask=inside, other=float("-inf"))
    found = tl.where(found <= float("inf"), found, float("inf"))
    top = tl.max(found, 0)
    temperature = tl.load(settings + row).to(tl.float32)
    is_finite = (top < float("inf")) & (top > float("-inf"))
    distance = tl.where(is_finite, found - tl.where(is_finite, top, 0.0), float("-inf"))
    to = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(tops + to, top)
    tl.store(ids + to, tl.min(tl.where((found == top) & inside, at, vocab), 0))
    tl.store(sums + to, tl.sum(tl.exp(distance / tl.where(temperature > 0, temperature, 1.0)), 0))


@triton.jit
def exponent_of(weights):
    """Binary exponents of integral float32 weights, from 1; 0 for a weight of 0."""
    return tl.maximum((weights.to(tl.int32, bitcast=True) >> 23) - 126, 0)


@triton.jit
def weigh(
    logits,
    settings,
    tops,
    sums,
    weights,
    block_sums,
    largest,
    by_exponent,
    rows,
    vocab,
    row_stride,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """weights = floor(2**50 softmax(logits / temperature)), float32; their sum and largest in each block.

    by_exponent: int64 [rows, blocks, 64]: 2**51 · number + sum of the block's weights of each exponent, for rows that
    need them. Grid: rows, blocks.
    """
    row = tl.program_id(0)
    blocks = tl.num_programs(1)
    temperature = tl.load(settings + row).to(tl.float32)
    block = tl.arange(0, BLOCKS)
    block_tops = tl.load(tops + row * blocks + block, mask=block < blocks, other=float("-inf"))
    block_totals = tl.load(sums + row * blocks + block, mask=block < blocks, other=0.0)
    top = tl.max(block_tops, 0)
    if (temperature > 0) & (top < float("inf")) & (top > float("-inf")):
        total = tl.sum(block_totals * tl.exp((block_tops - top) / temperature), 0)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = at < vocab
        found = tl.load(logits + row.to(tl.int64) * row_stride + at, mask=inside, other=float("-inf"))
        weight = tl.floor(tl.exp((found - top) / temperature) / total * 1125899906842624.0)
        tl.store(weights + row.to(tl.int64) * vocab + at, weight, mask=inside)
        to = row * blocks + tl.program_id(1)
        whole = weight.to(tl.int64)
        tl.store(block_sums + to, tl.sum(whole, 0))
        tl.store(largest + to, tl.max(weight, 0))
        if (tl.load(settings + 2 * rows + row) > 0) | (tl.load(settings + 3 * rows + row) < 1):
            exponent = tl.where(inside, exponent_of(weight), -1)
            entry = tl.arange(0, 64)
            table = tl.full((64,), 0, tl.int64)
            counted = whole + tl.full((BLOCK,), 1 << 51, tl.int64)
            lowest = tl.maximum(tl.min(tl.where(inside, exponent, 63), 0), 0)
            for each in range(lowest, tl.max(exponent, 0) + 1):
                table = tl.where(entry == each, tl.sum(tl.where(exponent == each, counted, 0), 0), table)
            tl.store(by_exponent + to.to(tl.int64) * 64 + entry, table)


@triton.jit
def measured(table, BY_COUNT: tl.constexpr):
    """Numbers of weights, or their sums, from entries of `by_exponent`."""
    if BY_COUNT:
        return (table >> 51) & 8191
    else:
        return table & ((1 << 51) - 1)


@triton.jit
def reached_at(
    aim,
    table,
    weights,
    by_exponent,
    scratch,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    BY_COUNT: tl.constexpr,
):
    """The largest threshold t for which the weights >= t number, or sum to, at least `aim` (> 0); and their sum.

    table: int64 [BLOCKS, 64], those entries of `by_exponent` that the row has.
    """
    entry = tl.arange(0, 64)
    amounts = tl.sum(measured(table, BY_COUNT), 0)
    sums = tl.sum(measured(table, False), 0)
    from_above = tl.sum(amounts, 0) - tl.cumsum(amounts, 0) + amounts
    exponent = tl.max(tl.where(from_above >= aim, entry, 0), 0)
    above = tl.sum(tl.where(entry > exponent, amounts, 0), 0)
    count = 0
    for block in range(0, blocks):  # the weights of that exponent, one after another
        if tl.load(by_exponent + block * 64 + exponent) != 0:
            at = block * BLOCK + tl.arange(0, BLOCK)
            weight = tl.load(weights + at, mask=at < vocab, other=-1.0)
            chosen = (weight >= 0) & (exponent_of(weight) == exponent)
            number = tl.cumsum(chosen.to(tl.int32), 0)
            tl.store(scratch + count + number - 1, weight, mask=chosen)
            count += tl.sum(chosen.to(tl.int32), 0)
    tl.debug_barrier()
    low = tl.where(exponent > 0, (exponent + 126) << 23, 0)
    if exponent > 0:
        for bit in range(0, 23):
            higher = low | (4194304 >> bit)
            amount = above + kept_of(scratch, count, higher, BLOCK, BY_COUNT)
            low = tl.where(amount >= aim, higher, low)
    total = tl.sum(tl.where(entry > exponent, sums, 0), 0) + kept_of(scratch, count, low, BLOCK, False)
    tl.debug_barrier()  # before others are written to `scratch`
    return low.to(tl.float32, bitcast=True), total


@triton.jit
def kept_of(scratch, count, threshold, BLOCK: tl.constexpr, BY_COUNT: tl.constexpr):
    """Number or sum of `count` weights whose bits are at least those of the threshold."""
    found = tl.full((BLOCK,), 0, tl.int64)
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        weight = tl.load(scratch + at, mask=at < count, other=-1.0)
        is_kept = weight.to(tl.int32, bitcast=True) >= threshold
        found += tl.where(is_kept, 1 if BY_COUNT else weight.to(tl.int64), 0)
    return tl.sum(found, 0)


@triton.jit
def threshold_of(
    settings,
    weights,
    largest_weight,
    kept,
    by_exponent,
    scratch,
    rows,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The smallest weight that a row keeps. Pointers are to the row's part. kept: the sum of all its weights."""
    top_k = tl.load(settings + 2 * rows).to(tl.int64)
    top_p = tl.load(settings + 3 * rows)
    min_p = tl.load(settings + 4 * rows)
    threshold = (largest_weight.to(tl.float64) * min_p).to(tl.float32)
    filters_k = (top_k > 0) & (top_k < vocab)
    if filters_k | (top_p < 1):
        block = tl.arange(0, BLOCKS)[:, None]
        table = tl.load(by_exponent + block * 64 + tl.arange(0, 64)[None], mask=block < blocks, other=0)
        if filters_k:
            of_k, kept = reached_at(*(top_k, table, weights, by_exponent, scratch, vocab, blocks, BLOCK, BLOCKS, True))
            threshold = tl.maximum(threshold, of_k)
        if top_p < 1:
            aim = tl.maximum(tl.ceil(kept.to(tl.float64) * top_p).to(tl.int64), 1)
            of_p, _ = reached_at(*(aim, table, weights, by_exponent, scratch, vocab, blocks, BLOCK, BLOCKS, False))
            threshold = tl.maximum(threshold, of_p)
    return threshold


@triton.jit
def kept_in(weights, block, threshold, vocab, BLOCK: tl.constexpr):
    """The weights of one block as int64, 0 where they are below the threshold."""
    at = block * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(weights + at, mask=at < vocab, other=0.0)
    return tl.where(weight >= threshold, weight, 0.0).to(tl.int64)


@triton.jit
def token_at(weights, sums, threshold, uniform, vocab, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """The first id at which the sum of the kept weights exceeds floor(uniform Σ). sums: of the blocks [BLOCKS]."""
    block = tl.arange(0, BLOCKS)
    total = tl.sum(sums, 0)
    target = tl.minimum(tl.floor(total.to(tl.float64) * uniform).to(tl.int64), total - 1)
    where = tl.sum((tl.cumsum(sums, 0) <= target).to(tl.int32), 0)
    target -= tl.sum(tl.where(block < where, sums, 0), 0)
    within = tl.cumsum(kept_in(weights, where, threshold, vocab, BLOCK), 0)
    return (where * BLOCK + tl.sum((within <= target).to(tl.int32), 0)).to(tl.int64)


@triton.jit
def draw(
    settings,
    tops,
    ids,
    weights,
    block_sums,
    largest,
    by_exponent,
    scratch,
    out,
    rows,
    vocab,
    blocks,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The token that a row's uniform number chooses, or its largest logit's. scratch: like weights. Grid: rows."""
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    is_block = block < blocks
    block_tops = tl.load(tops + row * blocks + block, mask=is_block, other=float("-inf"))
    top = tl.max(block_tops, 0)
    is_finite = (top < float("inf")) & (top > float("-inf"))
    first = tl.min(tl.where((block_tops == top) & is_block, block, blocks - 1), 0)
    token = tl.where(is_finite, tl.load(ids + row * blocks + first).to(tl.int64), -1)
    if is_finite & (tl.load(settings + row) > 0):
        sums = tl.load(block_sums + row * blocks + block, mask=is_block, other=0)
        highest = tl.load(largest + row * blocks + block, mask=is_block, other=0.0)
        weights += row.to(tl.int64) * vocab
        threshold = threshold_of(
            *(settings + row, weights, tl.max(highest, 0), tl.sum(sums, 0)),
            *(by_exponent + row.to(tl.int64) * blocks * 64, scratch + row.to(tl.int64) * vocab),
            *(rows, vocab, blocks, BLOCK, BLOCKS),
        )
        if threshold > 0:
            sums = tl.where(highest >= threshold, sums, 0)
            for each in range(0, blocks):
                if tl.sum(tl.where(block == each, sums, 0), 0) > 0:
                    kept = tl.sum(kept_in(weights, each, threshold, vocab, BLOCK), 0)
                    sums = tl.where(block == each, kept, sums)
        token = token_at(weights, sums, threshold, tl.load(settings + rows + row), vocab, BLOCK, BLOCKS)
    tl.store(out + row, token)


def sample(
    logits: Tensor, temperature: Floats, uniform: Floats, top_k: Integers, top_p: Floats, min_p: Floats
) -> Tensor:
    settings = torch.from_numpy(device_settings(temperature, uniform, top_k, top_p, min_p))
    return sample_on_device(logits, settings.to(logits.device, non_blocking=True))


@capturable
def sample_on_device(logits: Tensor, settings: Tensor) -> Tensor:
    """The op as a `DeviceSample`."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    (rows, vocab), device = logits.shape, logits.device
    out = torch.empty(rows, dtype=torch.int64, device=device)
    if not rows:
        return out
    blocks = triton.cdiv(vocab, BLOCK)
    tops, sums, largest = torch.empty(3, rows, blocks, dtype=torch.float32, device=device)
    ids = torch.empty(rows, blocks, dtype=torch.int32, device=device)
    weights, scratch = torch.empty(2, rows, vocab, dtype=torch.float32, device=device)
    block_sums = torch.empty(rows, blocks, dtype=torch.int64, device=device)
    by_exponent = torch.empty(rows, blocks, 64, dtype=torch.int64, device=device)
    size = triton.next_power_of_2(blocks)
    summarize[rows, blocks](logits, settings, tops, ids, sums, rows, vocab, logits.stride(0), BLOCK, num_warps=8)
    weigh[rows, blocks](
        *(logits, settings, tops, sums, weights, block_sums, largest, by_exponent),
        *(rows, vocab, logits.stride(0), BLOCK, size),
        num_warps=8,
    )
    draw[rows,](
        *(settings, tops, ids, weights, block_sums, largest, by_exponent, scratch, out),
        *(rows, vocab, blocks, BLOCK, size),
        num_warps=16,
    )
    return out


sample.on_device = sample_on_device  # type: ignore[attr-defined]
