"""Parts of the attention kernels: which tokens and keys a program covers.

A tile is up to BLOCK_M pairs of a token and a query head, all of one row and one key-value head, whose keys are read
once for all pairs. Pair i of a row is token i // GROUP and query head i % GROUP of the key-value head's GROUP.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def pairs_of_tile(
    item,
    items,
    tiles,
    query_starts,
    contexts,
    visible_ends,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    HAS_ITEMS: tl.constexpr,
    HAS_ENDS: tl.constexpr,
    AGAIN: tl.constexpr = False,
):
    """The row, and for each pair: whether there is one, token of the step, head of the group, position, visible end.

    The end is 0 where there is no pair. items: int32 [items, 2], row and first pair of each; without it every row has
    `tiles` tiles. AGAIN: for results, after the loop over keys; being loaded anew, the compiler keeps none of it in
    registers through the loop.
    """
    if HAS_ITEMS:
        row = tl.load(items + 2 * item, volatile=AGAIN)
        first = tl.load(items + 2 * item + 1, volatile=AGAIN)
    else:
        row = item // tiles
        first = item % tiles * BLOCK_M
    start = tl.load(query_starts + row, volatile=AGAIN)
    length = tl.load(query_starts + row + 1, volatile=AGAIN) - start
    context = tl.load(contexts + row)
    pair = first + tl.arange(0, BLOCK_M)
    is_pair = pair < length * GROUP
    token = pair // GROUP
    position = context - length + token
    end = position + 1
    if HAS_ENDS:
        end = tl.minimum(tl.load(visible_ends + start + token, mask=is_pair, other=0), context)
    return row, is_pair, start + token, pair % GROUP, position, tl.where(is_pair, end, 0)


@triton.jit
def range_of_tile(
    is_pair,
    position,
    end,
    window,
    chunk,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
):
    """The positions [first, last) that a tile attends to; first is a multiple of BLOCK_N, so blocks lie where they lie
    for any other tile.
    """
    last = tl.max(end, 0)
    first = last * 0
    if HAS_WINDOW or HAS_CHUNK:
        oldest = position * 0
        if HAS_WINDOW:
            oldest = tl.maximum(position - window + 1, 0)
        if HAS_CHUNK:
            oldest = tl.maximum(oldest, position // chunk * chunk)
        first = tl.min(tl.where(is_pair, oldest, last), 0) // BLOCK_N * BLOCK_N
    return first, last


@triton.jit
def split_length(count, MIN_SPLIT: tl.constexpr, SPLITS: tl.constexpr):
    """Positions of a split: the smallest MIN_SPLIT * 2**n with which SPLITS splits cover `count` positions.

    It depends on the row alone, not on the batch.
    """
    length = count * 0 + MIN_SPLIT
    for _ in tl.static_range(14):
        length = tl.where(length * SPLITS < count, length * 2, length)
    return length


@triton.jit
def is_visible(
    keys,
    position,
    end,
    head,
    window,
    chunk,
    stripes,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_STRIPES: tl.constexpr,
):
    """Whether a pair attends to a key, [BLOCK_M, BLOCK_N]. head: the query head among all. stripes: `Stripes`."""
    visible = keys[None] < end[:, None]
    if HAS_WINDOW:
        visible &= position[:, None] - keys[None] < window
    if HAS_CHUNK:
        visible &= position[:, None] // chunk == keys[None] // chunk
    if HAS_STRIPES:
        block, local, stride, step, first = stripes
        near = position[:, None] // block - keys[None] // block < local
        visible &= near | ((keys[None] // block + 1 + (first + head[:, None]) * step) % stride == 0)
    return visible


@triton.jit
def tanh(x):
    """Correct to about 1e-7: exp2 saturates to infinity and 0 where tanh is 1 and -1."""
    return 1.0 - 2.0 / (1.0 + tl.exp2(x * 2.8853900817779268))


@triton.jit
def divided(acc, total, top, sink, HAS_SINKS: tl.constexpr):
    """Sums of weighted values, divided by the sums of the weights and of the sinks' weights; 0 where no key was seen.

    acc [M, V]; total, top [M]: sum and maximum, in base 2; sink [M]: scores in base 2.
    """
    if HAS_SINKS:
        highest = tl.maximum(top, sink)
        factor = tl.exp2(top - highest)
        total = total * factor + tl.exp2(sink - highest)
        acc = acc * factor[:, None]
    return acc / tl.where(total > 0, total, 1.0)[:, None]
