"""The op `gated_delta` for GPUs: the gated delta rule, token by token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu.rows.acts import sigmoid
from quire_kernels.triton_gpu.state.functions import row_of, softplus

DECODE_VALUES, DECODE_WARPS = 32, 4
"""Of a program where rows have one token: value channels, and warps."""

PREFILL_VALUES, PREFILL_WARPS = 8, 1
"""Where rows are longer: one warp sums without waiting for others, and more programs go through a row."""


@triton.jit
def _unit(x):
    """x / |x| of a vector."""
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def advance_delta(
    qkv,
    qkv_token,
    decay,
    decay_token,
    weight,
    weight_token,
    rate,
    bias,
    state,
    state_slot,
    slots,
    starts,
    out,
    factor,
    key_heads,
    D: tl.constexpr,
    V: tl.constexpr,
    D_BLOCK: tl.constexpr,
    VALUES: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
):
    """Grid: rows, heads, blocks of VALUES value channels. Names are those of `quire_kernels.state.ops.GatedDelta`."""
    start, end, slot = row_of(starts, slots)
    head, heads = tl.program_id(1), tl.num_programs(1)
    d, v = tl.arange(0, D_BLOCK), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    in_key, in_value = d < D, v < V
    mask = in_key[:, None] & in_value[None] & (slot >= 0)
    place = state + slot.to(tl.int64) * state_slot + head * (D * V) + d[:, None] * V + v[None]
    of_query = qkv + head // (heads // key_heads) * D + d
    of_key, of_value = of_query + key_heads * D, qkv + 2 * key_heads * D + head * V + v
    of_decay = decay + head * D + d if BY_CHANNEL else decay + head
    of_offset = bias + head * D + d if BY_CHANNEL else bias + head
    speed = tl.load(rate + head)
    if end > start:
        s = tl.load(place, mask=mask, other=0.0)
        for token in range(start, end):
            t = token + start.to(tl.int64) * 0
            q = _unit(tl.load(of_query + t * qkv_token, mask=in_key, other=0.0).to(tl.float32)) * (D**-0.5)
            k = _unit(tl.load(of_key + t * qkv_token, mask=in_key, other=0.0).to(tl.float32))
            value = tl.load(of_value + t * qkv_token, mask=in_value, other=0.0).to(tl.float32)
            if BY_CHANNEL:
                step = tl.load(of_decay + t * decay_token, mask=in_key, other=0.0).to(tl.float32)
                step += tl.load(of_offset, mask=in_key, other=0.0)
                s *= tl.exp(speed * softplus(step))[:, None]
            else:
                step = tl.load(of_decay + t * decay_token).to(tl.float32) + tl.load(of_offset)
                s *= tl.exp(speed * softplus(step))
            share = factor * sigmoid(tl.load(weight + t * weight_token + head).to(tl.float32))
            added = share * (value - tl.sum(s * k[:, None], 0))
            found = tl.sum(s * q[:, None], 0) + added * tl.sum(k * q, 0)
            s += k[:, None] * added[None]
            tl.store(out + (t * heads + head) * V + v, found.to(out.dtype.element_ty), mask=in_value)
        tl.store(place, s, mask=mask)


@capturable
def gated_delta(
    qkv: Tensor,
    decay: Tensor,
    weight: Tensor,
    rate: Tensor,
    bias: Tensor,
    state: Tensor,
    slots: Tensor,
    rows: AttentionMetadata,
    dims: tuple[int, int],
    factor: float = 1.0,
) -> Tensor:
    heads, (dim, width) = len(rate), dims
    out = qkv.new_empty(len(qkv), heads, width)
    single = rows.max_query <= 1
    values, warps = (DECODE_VALUES, DECODE_WARPS) if single else (PREFILL_VALUES, PREFILL_WARPS)
    values = min(values, triton.next_power_of_2(width))
    qkv, decay, weight = (each if each.stride(-1) == 1 else each.contiguous() for each in (qkv, decay, weight))
    advance_delta[len(slots), heads, triton.cdiv(width, values)](
        *(qkv, qkv.stride(0), decay, decay.stride(0), weight, weight.stride(0), rate, bias, state, state.stride(0)),
        *(slots, rows.query_starts, out, factor, (qkv.shape[1] - heads * width) // (2 * dim), dim, width),
        **{"D_BLOCK": triton.next_power_of_2(dim), "VALUES": values, "BY_CHANNEL": decay.shape[1] != heads},
        num_warps=warps,
    )
    return out
