"""The kernels of paged attention: `attend` reads keys and values once, `combine` joins the splits of a context.

Contexts of rows with few tokens are split over programs, whose results are joined in the order of the splits
(flash-decoding): by the last of these programs where a tile has few pairs, else by `combine`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire_kernels.triton_gpu.attention.results import has_arrived_last, join, store_part, store_result
from quire_kernels.triton_gpu.attention.scan import nothing, read, scan, scan_all
from quire_kernels.triton_gpu.attention.tile import pairs_of_tile, range_of_tile, split_length
from quire_kernels.triton_gpu.device import await_previous_launch

VARYING = [
    *("tiles", "first_item", "pairs_per_item", "splits", "reach", "window", "chunk"),
    *("stripe_block", "stripe_local", "stripe_stride", "stripe_step", "stripe_first"),
]
"""Arguments that vary with the step or the model, and for which no kernel is compiled anew."""


@triton.jit(do_not_specialize=VARYING)
def attend(
    out,
    partial,
    stats,
    arrived,
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
    splits,
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
    stripe_first,
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
    JOINS: tl.constexpr,
    PARTS: tl.constexpr,
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
    OVERLAPS: tl.constexpr,
):
    """Attention of one tile to the keys of one key-value head, or with SPLIT to some of the splits of them.

    Grid: key-value heads, tiles, programs among which the splits are divided. Without SPLIT the result goes to `out`
    [T, H, V], else to `partial` float32 [tiles, K, pairs_per_item, splits, V] and `stats` float32 [tiles, K,
    pairs_per_item, splits, 2]: sums of weighted values, maximum and sum of weights. JOINS: the last program of a tile
    and head joins them; arrived int32 [tiles, K]: 0 before and after. Strides of queries, keys and values are in units
    of UNIT elements.
    """
    await_previous_launch(OVERLAPS)
    q_token, q_head, k_page, k_slot = q_token * UNIT, q_head * UNIT, k_page * UNIT, k_slot * UNIT
    k_head, v_page, v_slot, v_head = k_head * UNIT, v_page * UNIT, v_slot * UNIT, v_head * UNIT
    kv_head = tl.program_id(0)
    row, is_pair, token, in_group, position, end = pairs_of_tile(
        *(tl.program_id(1) + first_item, items, tiles, query_starts, contexts, visible_ends),
        *(GROUP, BLOCK_M, HAS_ITEMS, HAS_ENDS),
    )
    head = kv_head * GROUP + in_group
    first, last = range_of_tile(is_pair, position, end, window, chunk, BLOCK_N, HAS_WINDOW, HAS_CHUNK)
    count, length = 1, last - first
    if SPLIT:
        length = split_length(last - first, MIN_SPLIT, SPLITS)
        count = tl.cdiv(last - first, length)
        if tl.program_id(2) >= tl.maximum(count, 1):
            return
    at_q = token.to(tl.int64) * q_token + head * q_head
    queries = (
        read(q, at_q, 0, D_BLOCK, D, is_pair, True),
        read(q, at_q, D_BLOCK, D_TAIL, D, is_pair, True) if D_TAIL else 0,
    )
    slope = tl.load(slopes + head, mask=is_pair, other=0.0).to(tl.float32) if HAS_SLOPES else 0
    pairs, scoring = (position, end, head), (scale, softcap, slope, biases, reach)
    limits = (window, chunk, (stripe_block, stripe_local, stripe_stride, stripe_step, stripe_first))
    k_base, v_base = k_pool + kv_head.to(tl.int64) * k_head, v_pool + kv_head.to(tl.int64) * v_head
    pools, row_pages = (k_base, (k_page, k_slot), v_base, (v_page, v_slot)), pages + row.to(tl.int64) * pages_stride
    columns, item = tl.arange(0, V_BLOCK), tl.program_id(1) * tl.num_programs(0) + kv_head
    part = (item * pairs_per_item + tl.arange(0, BLOCK_M)) * splits  # PARTIAL_BYTES bounds it
    acc, total, top = nothing(BLOCK_M, V_BLOCK)
    if SPLIT:
        for split in range(tl.program_id(2), count, tl.num_programs(2)):
            lo = first + split * length
            acc, total, top = nothing(BLOCK_M, V_BLOCK)
            acc, total, top = scan(
                *(
                    (acc, total, top),
                    queries,
                    pools[0],
                    pools[1],
                    pools[2],
                    pools[3],
                    row_pages,
                    lo,
                    tl.minimum(lo + length, last),
                ),
                *(pairs, limits, scoring),
                *(D, V, D_BLOCK, D_TAIL, V_BLOCK, V_FROM_K, PAGE, BLOCK_N, True),
                *(HAS_WINDOW, HAS_CHUNK, HAS_STRIPES, HAS_CAP, HAS_SLOPES, HAS_BIASES, PRECISION, WIDE),
            )
            store_part(partial, stats, part + split, acc, total, top, is_pair, columns, V)
    else:
        acc, total, top = scan_all(
            *(queries, pools, row_pages, first, last, is_pair, pairs, limits, scoring, BLOCK_M),
            *(D, V, D_BLOCK, D_TAIL, V_BLOCK, V_FROM_K, PAGE, BLOCK_N),
            *(HAS_WINDOW, HAS_CHUNK, HAS_STRIPES, HAS_CAP, HAS_SLOPES, HAS_BIASES, PRECISION, WIDE),
        )
        if V_BLOCK >= 256:  # whose sums leave no registers for anything else
            _, is_pair, token, in_group, _, _ = pairs_of_tile(
                *(tl.program_id(1) + first_item, items, tiles, query_starts, contexts, visible_ends),
                *(GROUP, BLOCK_M, HAS_ITEMS, False, True),
            )
            head = kv_head * GROUP + in_group
    if count <= 1 and (JOINS or not SPLIT):
        to = token.to(tl.int64) * (tl.num_programs(0) * GROUP * V) + head * V
        store_result(out, to, acc, total, top, sinks + head, is_pair, columns, V, HAS_SINKS)
    elif JOINS:
        tl.debug_barrier()  # all threads have stored their part before one of them says so
        if has_arrived_last(arrived + item, tl.minimum(count, tl.num_programs(2))):
            for index in range(0, pairs_per_item):
                join(
                    *(out, partial, stats, sinks, item, index, pairs_per_item, splits, count, kv_head),
                    *(is_pair, token, in_group, GROUP, V, V_BLOCK, BLOCK_M, PARTS, HAS_SINKS),
                )


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
    """Join the splits of one pair. Grid: key-value heads, pairs of a tile, tiles."""
    kv_head, index, item = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    _, is_pair, token, in_group, position, end = pairs_of_tile(
        *(item + first_item, items, tiles, query_starts, contexts, visible_ends),
        *(GROUP, BLOCK_M, HAS_ITEMS, HAS_ENDS),
    )
    first, last = range_of_tile(is_pair, position, end, window, chunk, BLOCK_N, HAS_WINDOW, HAS_CHUNK)
    count = tl.cdiv(last - first, split_length(last - first, MIN_SPLIT, SPLITS))
    join(
        *(out, partial, stats, sinks, item * tl.num_programs(0) + kv_head, index, pairs_per_item, splits, count),
        *(kv_head, is_pair, token, in_group, GROUP, V, V_BLOCK, BLOCK_M, PARTS, HAS_SINKS),
    )
