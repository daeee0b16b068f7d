"""The kernels of paged attention: `attend` reads keys and values once, `combine` joins the splits of a context.

Contexts of rows with few tokens are split over programs, whose results are joined in the order of the splits
(flash-decoding).
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire_kernels.triton_gpu.attention.scan import LOG2E, read, scan
from quire_kernels.triton_gpu.attention.tile import divided, pairs_of_tile, range_of_tile, split_length

VARYING = [
    *("tiles", "first_item", "pairs_per_item", "splits", "reach", "window", "chunk"),
    *("stripe_block", "stripe_local", "stripe_stride", "stripe_step"),
]
"""Arguments that vary with the step or the model, and for which no kernel is compiled anew."""


@triton.jit(do_not_specialize=VARYING)
def attend(
    out,
    partial,
    stats,
    q,
    q_token,
    q_head,
    k_pool,
    k_page,
    k_slot,
    k_head,
    v_pool,
    v_page,
    v_slot,
    v_head,
    query_starts,
    contexts,
    pages,
    pages_stride,
    visible_ends,
    items,
    tiles,
    first_item,
    pairs_per_item,
    sinks,
    slopes,
    biases,
    reach,
    scale,
    softcap,
    window,
    chunk,
    stripe_block,
    stripe_local,
    stripe_stride,
    stripe_step,
    UNIT: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    D_BLOCK: tl.constexpr,
    D_TAIL: tl.constexpr,
    V_BLOCK: tl.constexpr,
    V_FROM_K: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_ITEMS: tl.constexpr,
    HAS_ENDS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_BIASES: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_STRIPES: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Attention of one tile to the keys of one key-value head, or with SPLIT to a split of them.

    Grid: key-value heads, tiles, splits. Without SPLIT the result goes to `out` [T, H, V], else to `partial`
    float32 [tiles, K, pairs_per_item, splits, V] and `stats` float32 [tiles, K, pairs_per_item, splits, 2]: sums of
    weighted values, maximum and sum of weights. Strides of queries, keys and values are in units of UNIT elements.
    """
    q_token, q_head, k_page, k_slot = q_token * UNIT, q_head * UNIT, k_page * UNIT, k_slot * UNIT
    k_head, v_page, v_slot, v_head = k_head * UNIT, v_page * UNIT, v_slot * UNIT, v_head * UNIT
    kv_head = tl.program_id(0)
    row, is_pair, token, in_group, position, end = pairs_of_tile(
        *(tl.program_id(1) + first_item, items, tiles, query_starts, contexts, visible_ends),
        *(GROUP, BLOCK_M, HAS_ITEMS, HAS_ENDS),
    )
    head = kv_head * GROUP + in_group
    first, last = range_of_tile(is_pair, position, end, window, chunk, BLOCK_N, HAS_WINDOW, HAS_CHUNK)
    lo, hi = first, last
    if SPLIT:
        length = split_length(last - first, MIN_SPLIT, SPLITS)
        lo = first + tl.program_id(2) * length
        hi = tl.minimum(lo + length, last)
        if lo >= hi:
            return
    at_q = token.to(tl.int64) * q_token + head * q_head
    queries = (
        read(q, at_q, 0, D_BLOCK, D, is_pair, True),
        read(q, at_q, D_BLOCK, D_TAIL, D, is_pair, True) if D_TAIL else 0,
    )
    slope = tl.load(slopes + head, mask=is_pair, other=0.0).to(tl.float32) if HAS_SLOPES else 0
    state = (
        tl.full((BLOCK_M, V_BLOCK), 0, tl.float32),
        tl.full((BLOCK_M,), 0, tl.float32),
        tl.full((BLOCK_M,), float("-inf"), tl.float32),
    )
    pairs = (position, end, head)
    limits = (window, chunk, (stripe_block, stripe_local, stripe_stride, stripe_step))
    scoring = (scale, softcap, slope, biases, reach)
    k_base, v_base = k_pool + kv_head.to(tl.int64) * k_head, v_pool + kv_head.to(tl.int64) * v_head
    row_pages = pages + row.to(tl.int64) * pages_stride
    if not (SPLIT or HAS_WINDOW or HAS_CHUNK or HAS_STRIPES):
        shared = tl.min(tl.where(is_pair, end, last), 0) // BLOCK_N * BLOCK_N  # keys before it are visible to all pairs
        state = scan(
            *(state, queries, k_base, (k_page, k_slot), v_base, (v_page, v_slot), row_pages, lo, shared),
            *(pairs, limits, scoring, D, V, D_BLOCK, D_TAIL, V_BLOCK, V_FROM_K, PAGE, BLOCK_N, False),
            *(False, False, False, HAS_CAP, HAS_SLOPES, HAS_BIASES, PRECISION, WIDE),
        )
        lo = shared
    acc, total, top = scan(
        *(state, queries, k_base, (k_page, k_slot), v_base, (v_page, v_slot), row_pages, lo, hi),
        *(pairs, limits, scoring, D, V, D_BLOCK, D_TAIL, V_BLOCK, V_FROM_K, PAGE, BLOCK_N, True),
        *(HAS_WINDOW, HAS_CHUNK, HAS_STRIPES, HAS_CAP, HAS_SLOPES, HAS_BIASES, PRECISION, WIDE),
    )
    columns = tl.arange(0, V_BLOCK)
    inside = is_pair[:, None] & (columns < V)[None]
    if SPLIT:
        pair = tl.arange(0, BLOCK_M)
        part = (tl.program_id(1) * tl.num_programs(0) + kv_head) * pairs_per_item + pair
        part = part.to(tl.int64) * tl.num_programs(2) + tl.program_id(2)
        tl.store(stats + part * 2, top, mask=is_pair)
        tl.store(stats + part * 2 + 1, total, mask=is_pair)
        tl.store(partial + part[:, None] * V + columns[None], acc, mask=inside)
    else:
        sink = tl.load(sinks + head, mask=is_pair, other=0.0).to(tl.float32) * LOG2E if HAS_SINKS else top
        to = out + token.to(tl.int64)[:, None] * (tl.num_programs(0) * GROUP * V) + head[:, None] * V + columns[None]
        tl.store(to, divided(acc, total, top, sink, HAS_SINKS).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=VARYING)
def combine(
    out,
    partial,
    stats,
    query_starts,
    contexts,
    visible_ends,
    items,
    tiles,
    first_item,
    pairs_per_item,
    splits,
    sinks,
    window,
    chunk,
    GROUP: tl.constexpr,
    V: tl.constexpr,
    V_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_ITEMS: tl.constexpr,
    HAS_ENDS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
):
    """Join the splits of one pair, PARTS at a time. Grid: key-value heads, pairs of a tile, tiles."""
    kv_head, index, item = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    _, is_pair, token, in_group, position, end = pairs_of_tile(
        *(item + first_item, items, tiles, query_starts, contexts, visible_ends),
        *(GROUP, BLOCK_M, HAS_ITEMS, HAS_ENDS),
    )
    first, last = range_of_tile(is_pair, position, end, window, chunk, BLOCK_N, HAS_WINDOW, HAS_CHUNK)
    mine = (tl.arange(0, BLOCK_M) == index) & is_pair
    if tl.sum(mine.to(tl.int32), 0) == 0:
        return
    head = kv_head * GROUP + tl.sum(tl.where(mine, in_group, 0), 0)
    to = (tl.sum(tl.where(mine, token, 0), 0).to(tl.int64) * tl.num_programs(0) * GROUP + head) * V
    count = tl.cdiv(last - first, split_length(last - first, MIN_SPLIT, SPLITS))
    part = ((item * tl.num_programs(0) + kv_head) * pairs_per_item + index).to(tl.int64) * splits
    columns = tl.arange(0, V_BLOCK)
    acc = tl.full((1, V_BLOCK), 0, tl.float32)
    total = tl.full((1,), 0, tl.float32)
    top = tl.full((1,), float("-inf"), tl.float32)
    for begin in range(0, count, PARTS):
        at = begin + tl.arange(0, PARTS)
        there = at < count
        tops = tl.load(stats + (part + at) * 2, mask=there, other=float("-inf"))
        totals = tl.load(stats + (part + at) * 2 + 1, mask=there, other=0.0)
        sums = tl.load(
            partial + (part + at)[:, None] * V + columns[None], mask=there[:, None] & (columns < V)[None], other=0.0
        )
        highest = tl.maximum(top, tl.max(tops, 0))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(tops - base)
        factor = tl.exp2(top - base)
        total = total * factor + tl.sum(weights * totals, 0)
        acc = acc * factor[:, None] + tl.sum(weights[:, None] * sums, 0)[None]
        top = highest
    sink = tl.load(sinks + head + tl.arange(0, 1)).to(tl.float32) * LOG2E if HAS_SINKS else top
    result = divided(acc, total, top, sink, HAS_SINKS).to(out.dtype.element_ty)
    tl.store(out + to + columns[None], result, mask=(columns < V)[None])
