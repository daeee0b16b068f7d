"""Parts of the attention kernels: the results of splits, how they are joined, and where those of a row go."""

from __future__ import annotations

import triton
import triton.language as tl

from quire_kernels.triton_gpu.attention.scan import LOG2E
from quire_kernels.triton_gpu.attention.tile import divided


@triton.jit
def store_part(partial, stats, at, acc, total, top, is_pair, columns, V: tl.constexpr):
    """Store the results of a split, at numbers `at` of each pair."""
    tl.store(stats + at * 2, top, mask=is_pair)
    tl.store(stats + at * 2 + 1, total, mask=is_pair)
    tl.store(partial + at[:, None] * V + columns[None], acc, mask=is_pair[:, None] & (columns < V)[None])


@triton.jit
def store_result(out, to, acc, total, top, sinks, is_pair, columns, V: tl.constexpr, HAS_SINKS: tl.constexpr):
    """Store the attention of pairs at elements `to` of `out`."""
    sink = tl.load(sinks, mask=is_pair, other=0.0).to(tl.float32) * LOG2E if HAS_SINKS else top
    found = divided(acc, total, top, sink, HAS_SINKS).to(out.dtype.element_ty)
    tl.store(out + to[:, None] + columns[None], found, mask=is_pair[:, None] & (columns < V)[None])


@triton.jit
def has_arrived_last(arrived, programs):
    """Whether all others of so many programs have been here; then the counter is 0 again."""
    before = tl.atomic_add(arrived, 1, sem="acq_rel")
    is_last = before + 1 == programs
    if is_last:
        tl.store(arrived, 0)
    return is_last


@triton.jit
def join(
    out,
    partial,
    stats,
    sinks,
    item,
    index,
    pairs_per_item,
    splits,
    count,
    kv_head,
    is_pair,
    token,
    in_group,
    GROUP: tl.constexpr,
    V: tl.constexpr,
    V_BLOCK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Join the `count` splits of pair `index` of a tile and head, PARTS at a time. Other programs have stored them."""
    mine = (tl.arange(0, BLOCK_M) == index) & is_pair
    if tl.sum(mine.to(tl.int32), 0) > 0:
        head = kv_head * GROUP + tl.sum(tl.where(mine, in_group, 0), 0)
        to = (tl.sum(tl.where(mine, token, 0), 0).to(tl.int64) * tl.num_programs(0) * GROUP + head) * V
        part = (item * pairs_per_item + index).to(tl.int64) * splits
        columns = tl.arange(0, V_BLOCK)
        acc = tl.full((1, V_BLOCK), 0, tl.float32)
        total = tl.full((1,), 0, tl.float32)
        top = tl.full((1,), float("-inf"), tl.float32)
        for begin in range(0, count, PARTS):
            at = begin + tl.arange(0, PARTS)
            there = at < count
            place = stats + (part + at) * 2
            tops = tl.load(place, mask=there, other=float("-inf"), cache_modifier=".cg")
            totals = tl.load(place + 1, mask=there, other=0.0, cache_modifier=".cg")
            sums = tl.load(
                partial + (part + at)[:, None] * V + columns[None],
                mask=there[:, None] & (columns < V)[None],
                other=0.0,
                cache_modifier=".cg",
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
