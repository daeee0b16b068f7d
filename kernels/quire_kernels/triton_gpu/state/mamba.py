"""The scans of state space models for GPUs, `ssd_scan` of Mamba-2 and `selective_scan` of Mamba, token by token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu.state.functions import row_of, softplus

DECODE_WIDTH, DECODE_WARPS = 32, 4
"""Of a program where rows have one token: channels of a head, and warps."""

PREFILL_WIDTH, PREFILL_WARPS = 8, 1
"""Where rows are longer: one warp sums without waiting for others, and more programs go through a row."""

CHANNELS = 64
"""Channels of a program of `selective_scan`."""


@triton.jit
def advance_ssd(
    xbc,
    xbc_token,
    step,
    step_token,
    rate,
    bias,
    skip,
    state,
    state_slot,
    slots,
    starts,
    out,
    groups,
    least,
    most,
    N: tl.constexpr,
    P: tl.constexpr,
    N_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Grid: rows, heads, blocks of WIDTH channels of a head. Names are those of `quire_kernels.state.ops.SsdScan`."""
    start, end, slot = row_of(starts, slots)
    head, heads = tl.program_id(1), tl.num_programs(1)
    n, p = tl.arange(0, N_BLOCK), tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    in_state, in_head = n < N, p < P
    mask = in_state[:, None] & in_head[None] & (slot >= 0)
    place = state + slot.to(tl.int64) * state_slot + head * (N * P) + n[:, None] * P + p[None]
    of_x, of_b = xbc + head * P + p, xbc + heads * P + head // (heads // groups) * N + n
    speed, offset, kept = tl.load(rate + head), tl.load(bias + head), tl.load(skip + head)
    if end > start:
        s = tl.load(place, mask=mask, other=0.0)
        for token in range(start, end):
            t = token + start.to(tl.int64) * 0
            x = tl.load(of_x + t * xbc_token, mask=in_head, other=0.0).to(tl.float32)
            b = tl.load(of_b + t * xbc_token, mask=in_state, other=0.0).to(tl.float32)
            c = tl.load(of_b + groups * N + t * xbc_token, mask=in_state, other=0.0).to(tl.float32)
            dt = softplus(tl.load(step + t * step_token + head).to(tl.float32) + offset)
            dt = tl.minimum(tl.maximum(dt, least), most)
            s = tl.exp(speed * dt) * s + b[:, None] * (dt * x)[None]
            found = tl.sum(s * c[:, None], 0) + kept * x
            tl.store(out + (t * heads + head) * P + p, found.to(out.dtype.element_ty), mask=in_head)
        tl.store(place, s, mask=mask)


@triton.jit
def advance_selective(
    x,
    x_token,
    step,
    step_token,
    b,
    b_token,
    c,
    c_token,
    rate,
    skip,
    state,
    state_slot,
    slots,
    starts,
    out,
    channels,
    N: tl.constexpr,
    N_BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Grid: rows, blocks of channels. Names are those of `quire_kernels.state.ops.SelectiveScan`."""
    start, end, slot = row_of(starts, slots)
    n, at = tl.arange(0, N_BLOCK), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    in_state, inside = n < N, at < channels
    both = in_state[:, None] & inside[None]
    mask, where = both & (slot >= 0), n[:, None] * channels + at[None]
    place = state + slot.to(tl.int64) * state_slot + where
    speed = tl.load(rate + where, mask=both, other=0.0)
    kept = tl.load(skip + at, mask=inside, other=0.0)
    if end > start:
        s = tl.load(place, mask=mask, other=0.0)
        for token in range(start, end):
            t = token + start.to(tl.int64) * 0
            value = tl.load(x + t * x_token + at, mask=inside, other=0.0).to(tl.float32)
            dt = softplus(tl.load(step + t * step_token + at, mask=inside, other=0.0).to(tl.float32))
            some_b = tl.load(b + t * b_token + n, mask=in_state, other=0.0).to(tl.float32)
            some_c = tl.load(c + t * c_token + n, mask=in_state, other=0.0).to(tl.float32)
            s = tl.exp(speed * dt[None]) * s + (dt * value)[None] * some_b[:, None]
            found = tl.sum(s * some_c[:, None], 0) + kept * value
            tl.store(out + t * channels + at, found.to(out.dtype.element_ty), mask=inside)
        tl.store(place, s, mask=mask)


@capturable
def ssd_scan(
    xbc: Tensor,
    step: Tensor,
    rate: Tensor,
    bias: Tensor,
    skip: Tensor,
    state: Tensor,
    slots: Tensor,
    rows: AttentionMetadata,
    dims: tuple[int, int],
    limits: tuple[float, float] = (0.0, float("inf")),
) -> Tensor:
    heads, (numbers, width) = len(rate), dims
    out = xbc.new_empty(len(xbc), heads, width)
    single = rows.max_query <= 1
    block, warps = (DECODE_WIDTH, DECODE_WARPS) if single else (PREFILL_WIDTH, PREFILL_WARPS)
    block = min(block, triton.next_power_of_2(width))
    xbc, step = (each if each.stride(-1) == 1 else each.contiguous() for each in (xbc, step))
    groups = (xbc.shape[1] - heads * width) // (2 * numbers)
    advance_ssd[len(slots), heads, triton.cdiv(width, block)](
        *(xbc, xbc.stride(0), step, step.stride(0), rate, bias, skip, state, state.stride(0), slots),
        *(rows.query_starts, out, groups, float(limits[0]), min(float(limits[1]), 3e38), numbers, width),
        **{"N_BLOCK": triton.next_power_of_2(numbers), "WIDTH": block},
        num_warps=warps,
    )
    return out


@capturable
def selective_scan(
    x: Tensor,
    step: Tensor,
    b: Tensor,
    c: Tensor,
    rate: Tensor,
    skip: Tensor,
    state: Tensor,
    slots: Tensor,
    rows: AttentionMetadata,
) -> Tensor:
    (numbers, channels), out = rate.shape, torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x, step, b, c = (each if each.stride(-1) == 1 else each.contiguous() for each in (x, step, b, c))
    advance_selective[len(slots), triton.cdiv(channels, CHANNELS)](
        *(x, x.stride(0), step, step.stride(0), b, b.stride(0), c, c.stride(0), rate, skip, state, state.stride(0)),
        *(slots, rows.query_starts, out, channels, numbers),
        **{"N_BLOCK": triton.next_power_of_2(numbers), "CHANNELS": CHANNELS},
        num_warps=1,
    )
    return out
