"""The kernel that attends to a range of keys, block by block, with an online softmax (arXiv 2205.14135).

Scores are in base 2, so that weights are exp2.
"""

from __future__ import annotations

import triton
import triton.language as tl

from quire_kernels.triton_gpu.attention.tile import is_visible, tanh

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _add_product(a, b, sums, PRECISION: tl.constexpr, WIDE: tl.constexpr):
    if WIDE:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision=PRECISION)


@triton.jit
def read(base, offsets, first: tl.constexpr, BLOCK: tl.constexpr, width: tl.constexpr, seen, MASKED: tl.constexpr):
    """Columns first … first+BLOCK-1 of rows at `offsets`: 0 from column `width` on and, if MASKED, where not seen."""
    columns = first + tl.arange(0, BLOCK)
    at = base + offsets[:, None] + columns[None]
    if first + BLOCK == width:
        if MASKED:
            return tl.load(at, mask=seen[:, None], other=0.0)
        return tl.load(at)
    inside = columns[None] < width
    if MASKED:
        inside = inside & seen[:, None]
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _scores(
    found,
    keys,
    position,
    head,
    scale,
    softcap,
    slope,
    biases,
    reach,
    HAS_CAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_BIASES: tl.constexpr,
):
    """Products of queries and keys -> scores in base 2. With a cap, `scale` is already divided by it."""
    found = found * scale
    if HAS_CAP:
        found = tanh(found) * softcap
    ahead = keys[None] - position[:, None]
    if HAS_SLOPES:
        found += slope[:, None] * ahead
    if HAS_BIASES:
        column = tl.minimum(tl.maximum(ahead, -reach), reach) + reach
        found += tl.load(biases + head[:, None] * (2 * reach + 1) + column)
    return found * LOG2E


@triton.jit
def scan(
    state,
    queries,
    k_base,
    k_strides,
    v_base,
    v_strides,
    pages,
    lo,
    hi,
    pairs,
    limits,
    scoring,
    D: tl.constexpr,
    V: tl.constexpr,
    D_BLOCK: tl.constexpr,
    D_TAIL: tl.constexpr,
    V_BLOCK: tl.constexpr,
    V_FROM_K: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_STRIPES: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_BIASES: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Attend to the keys [lo, hi) of one row; without MASKED all of them are visible to all pairs.

    state: sums of weighted values, of weights, and maximum scores of the pairs. pages: the row's, in the page table.
    """
    acc, total, top = state
    q, q_tail = queries
    position, end, head = pairs
    window, chunk, stripes = limits
    scale, softcap, slope, biases, reach = scoring
    for at in range(lo, hi, BLOCK_N):
        keys = at + tl.arange(0, BLOCK_N)
        seen = keys < hi
        page = tl.load(pages + keys // PAGE, mask=seen, other=0).to(tl.int64)
        slot = (keys % PAGE).to(tl.int64)
        at_k = page * k_strides[0] + slot * k_strides[1]
        k = read(k_base, at_k, 0, D_BLOCK, D, seen, MASKED)
        found = tl.full((q.shape[0], BLOCK_N), 0, tl.float32)
        found = _add_product(q, tl.trans(k), found, PRECISION, WIDE)
        if D_TAIL:
            tail = read(k_base, at_k, D_BLOCK, D_TAIL, D, seen, MASKED)
            found = _add_product(q_tail, tl.trans(tail), found, PRECISION, WIDE)
        found = _scores(
            found, keys, position, head, scale, softcap, slope, biases, reach, HAS_CAP, HAS_SLOPES, HAS_BIASES
        )
        if MASKED:
            visible = is_visible(keys, position, end, head, window, chunk, stripes, HAS_WINDOW, HAS_CHUNK, HAS_STRIPES)
            found = tl.where(visible, found, float("-inf"))
        highest = tl.maximum(top, tl.max(found, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest) if MASKED else highest
        weights = tl.exp2(found - base[:, None])
        factor = tl.exp2(top - base)
        total = total * factor + tl.sum(weights, 1)
        acc = acc * factor[:, None]
        v = k
        if not V_FROM_K:
            v = read(v_base, page * v_strides[0] + slot * v_strides[1], 0, V_BLOCK, V, seen, MASKED)
        acc = _add_product(weights.to(v.dtype), v, acc, PRECISION, WIDE)
        top = highest
    return acc, total, top


@triton.jit
def nothing(BLOCK_M: tl.constexpr, V_BLOCK: tl.constexpr):
    """Sums of weighted values and of weights, and maximum scores, before the first key."""
    acc = tl.full((BLOCK_M, V_BLOCK), 0, tl.float32)
    return acc, tl.full((BLOCK_M,), 0, tl.float32), tl.full((BLOCK_M,), float("-inf"), tl.float32)


@triton.jit
def scan_all(
    queries,
    pools,
    pages,
    lo,
    hi,
    is_pair,
    pairs,
    limits,
    scoring,
    BLOCK_M: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    D_BLOCK: tl.constexpr,
    D_TAIL: tl.constexpr,
    V_BLOCK: tl.constexpr,
    V_FROM_K: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CHUNK: tl.constexpr,
    HAS_STRIPES: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_BIASES: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Attend to all keys [lo, hi) of a tile: without a mask to those before the first that not all pairs see."""
    acc, total, top = nothing(BLOCK_M, V_BLOCK)
    if not (HAS_WINDOW or HAS_CHUNK or HAS_STRIPES or queries[0].dtype == tl.float32):
        shared = tl.min(tl.where(is_pair, pairs[1], hi), 0) // BLOCK_N * BLOCK_N
        acc, total, top = scan(
            *(
                (acc, total, top),
                queries,
                pools[0],
                pools[1],
                pools[2],
                pools[3],
                pages,
                lo,
                shared,
                pairs,
                limits,
                scoring,
            ),
            *(D, V, D_BLOCK, D_TAIL, V_BLOCK, V_FROM_K, PAGE, BLOCK_N, False),
            *(False, False, False, HAS_CAP, HAS_SLOPES, HAS_BIASES, PRECISION, WIDE),
        )
        lo = shared
    return scan(
        *((acc, total, top), queries, pools[0], pools[1], pools[2], pools[3], pages, lo, hi, pairs, limits, scoring),
        *(D, V, D_BLOCK, D_TAIL, V_BLOCK, V_FROM_K, PAGE, BLOCK_N, True),
        *(HAS_WINDOW, HAS_CHUNK, HAS_STRIPES, HAS_CAP, HAS_SLOPES, HAS_BIASES, PRECISION, WIDE),
    )
