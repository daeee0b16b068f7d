"""The ops `rotary`, `write_kv`, `rotary_write_kv` and `read_kv` for GPUs, one launch each.

A program handles HEADS heads of one token: those of the queries, then those of the keys and values. Tokens whose slot
is negative are padding, of which nothing is stored.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.triton_gpu.device import await_previous_launch, overlapping

HEADS = 4
"""Heads of one program."""


@triton.jit
def _turned(x, token, heads, is_head, x_token, x_head, cos, sin, half, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Halves [HEADS, HALF] of the rotated dimensions, before rounding; then the columns in which they belong."""
    pair = tl.arange(0, HALF)
    inside = pair < half
    first = pair * 2 if INTERLEAVED else pair
    second = first + 1 if INTERLEAVED else first + half
    base = x + token * x_token + heads[:, None] * x_head
    mask = is_head[:, None] & inside[None]
    a = tl.load(base + first[None], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(base + second[None], mask=mask, other=0.0).to(tl.float32)
    c = tl.load(cos + token * half + pair, mask=inside, other=0.0)[None]
    s = tl.load(sin + token * half + pair, mask=inside, other=0.0)[None]
    return a * c - b * s, b * c + a * s, first, second, mask


@triton.jit
def _copy(x, x_token, x_head, to, to_head, token, heads, is_head, first, width, WIDTH: tl.constexpr):
    """Columns from `first` on of a token's heads, to the heads at `to`."""
    column = tl.arange(0, WIDTH)
    mask = is_head[:, None] & ((column >= first) & (column < width))[None]
    found = tl.load(x + token * x_token + heads[:, None] * x_head + column[None], mask=mask, other=0.0)
    tl.store(to + heads[:, None] * to_head + column[None], found, mask=mask)


@triton.jit
def _rotate_and_store(
    q,
    q_token,
    q_head,
    q_heads,
    k,
    k_token,
    k_head,
    kv_heads,
    v,
    v_token,
    v_head,
    cos,
    sin,
    k_pool,
    k_slot,
    k_pool_head,
    v_pool,
    v_slot,
    v_pool_head,
    slot_mapping,
    d,
    width,
    half,
    HALF: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    HEADS: tl.constexpr,
    ROTATES: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    STORES: tl.constexpr,
    HAS_V: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Rotate queries in place; rotate keys in place or, if STORES, into their slot, and store values.

    Grid: tokens, blocks of heads of the queries (if ROTATES) followed by those of the keys. d, width: of keys and
    values. half: pairs of rotated dimensions.
    """
    await_previous_launch(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    query_blocks = tl.cdiv(q_heads, HEADS) if ROTATES else 0
    block = tl.program_id(1)
    if block < query_blocks:
        heads = block * HEADS + tl.arange(0, HEADS)
        a, b, first, second, mask = _turned(
            *(q, token, heads, heads < q_heads, q_token, q_head, cos, sin, half), HALF, INTERLEAVED
        )
        base = q + token * q_token + heads[:, None] * q_head
        tl.store(base + first[None], a.to(q.dtype.element_ty), mask=mask)
        tl.store(base + second[None], b.to(q.dtype.element_ty), mask=mask)
    else:
        heads = (block - query_blocks) * HEADS + tl.arange(0, HEADS)
        is_head = heads < kv_heads
        to, to_head = k + token * k_token, k_head
        if STORES:
            slot = tl.load(slot_mapping + token)
            is_head = is_head & (slot >= 0)
            to, to_head = k_pool + slot * k_slot, k_pool_head
            if HAS_V:
                to_v = v_pool + slot * v_slot
                _copy(v, v_token, v_head, to_v, v_pool_head, token, heads, is_head, 0, width, V)
        if ROTATES:
            a, b, first, second, mask = _turned(
                *(k, token, heads, is_head, k_token, k_head, cos, sin, half), HALF, INTERLEAVED
            )
            base = to + heads[:, None] * to_head
            tl.store(base + first[None], a.to(k.dtype.element_ty), mask=mask)
            tl.store(base + second[None], b.to(k.dtype.element_ty), mask=mask)
        if STORES:
            _copy(k, k_token, k_head, to, to_head, token, heads, is_head, 2 * half if ROTATES else 0, d, D)


@triton.jit
def _read_slots(
    k,
    v,
    k_pool,
    k_slot,
    k_pool_head,
    v_pool,
    v_slot,
    v_pool_head,
    slots,
    kv_heads,
    d,
    width,
    D: tl.constexpr,
    V: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Grid: slots, blocks of heads. k [N, K, d]; v [N, K, width]."""
    number = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + number)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head = heads < kv_heads
    _copy(k_pool, k_slot, k_pool_head, k + number * kv_heads * d, d, slot, heads, is_head, 0, d, D)
    _copy(v_pool, v_slot, v_pool_head, v + number * kv_heads * width, width, slot, heads, is_head, 0, width, V)


@capturable
def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> tuple[Tensor, Tensor]:
    q, k = _with_rows(q), _with_rows(k)
    _launch(q, k, None, cos, sin, k, k, None, interleaved)
    return q, k


@capturable
def write_kv(k: Tensor, v: Tensor | None, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    _launch(None, _with_rows(k), v, None, None, k_pool, v_pool, slot_mapping)


@capturable
def rotary_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slot_mapping: Tensor,
    interleaved: bool = False,
) -> Tensor:
    q = _with_rows(q)
    _launch(q, _with_rows(k), v, cos, sin, k_pool, v_pool, slot_mapping, interleaved)
    return q


def read_kv(k_pool: Tensor, v_pool: Tensor, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    heads, d, width = k_pool.shape[2], k_pool.shape[3], v_pool.shape[3]
    k, v = (torch.empty(len(slots), heads, size, dtype=dtype, device=k_pool.device) for size in (d, width))
    if len(slots):
        _read_slots[len(slots), triton.cdiv(heads, HEADS)](
            *(k, v, k_pool, *k_pool.stride()[1:3], v_pool, *v_pool.stride()[1:3], slots, heads, d, width),
            D=_block(d),
            V=_block(width),
            HEADS=HEADS,
        )
    return k, v


def _launch(
    q: Tensor | None,
    k: Tensor,
    v: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    k_pool: Tensor,
    v_pool: Tensor,
    slot_mapping: Tensor | None,
    interleaved: bool = False,
) -> None:
    """Without q nothing is rotated, without slot_mapping nothing stored."""
    tokens, kv_heads, d = k.shape
    heads, values = 0 if q is None else q.shape[1], k if v is None else _with_rows(v)
    half, width = 0 if cos is None else cos.shape[-1], values.shape[-1]
    blocks = triton.cdiv(heads, HEADS) + triton.cdiv(kv_heads, HEADS)
    turned = k if q is None else q
    angles = (k, k) if cos is None or sin is None else (cos.contiguous(), sin.contiguous())
    if not tokens:
        return
    _rotate_and_store[tokens, blocks](
        *(turned, *turned.stride()[:2], heads, k, *k.stride()[:2], kv_heads, values, *values.stride()[:2], *angles),
        *(k_pool, *k_pool.stride()[-3:-1], v_pool, *v_pool.stride()[-3:-1]),
        *(k if slot_mapping is None else slot_mapping, d, width, half),
        HALF=_block(half),
        D=_block(d),
        V=_block(width),
        HEADS=HEADS,
        ROTATES=q is not None,
        INTERLEAVED=interleaved,
        STORES=slot_mapping is not None,
        HAS_V=v is not None,
        **overlapping(k.device),
    )


def _with_rows(x: Tensor) -> Tensor:
    """Heads whose elements lie side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _block(width: int) -> int:
    return max(1, triton.next_power_of_2(width))
