"""The op `causal_conv` for GPUs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu.rows.acts import activated
from quire_kernels.triton_gpu.state.functions import row_of

CHANNELS = 256
"""Channels of a program."""

TOKENS = 16
"""Tokens of a program, one after another."""


@triton.jit
def convolve(
    x,
    x_token,
    weight,
    bias,
    state,
    state_slot,
    slots,
    starts,
    out,
    channels,
    J: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    ACT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    STORES: tl.constexpr,
):
    """Grid: rows, blocks of TOKENS tokens, blocks of channels. STORES: rows have one token, so that the program that
    reads a state also replaces it; else `keep_inputs` does.
    """
    start, end, slot = row_of(starts, slots)
    first = start + tl.program_id(1) * TOKENS
    if first < end:
        at = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
        inside = at < channels
        kept = state + slot.to(tl.int64) * state_slot + at
        for number in range(first, tl.minimum(first + TOKENS, end)):
            token = number + first * 0
            total = tl.full((CHANNELS,), 0, tl.float32)
            if HAS_BIAS:
                total += tl.load(bias + at, mask=inside, other=0.0)
            for j in tl.static_range(J):
                source = token - (J - 1) + j
                row, place = source.to(tl.int64) * x_token, (J - 1 + source - start) * channels
                value = tl.load(x + row + at, mask=inside & (source >= start), other=0.0)
                before = tl.load(kept + place, mask=inside & (source < start) & (slot >= 0), other=0.0)
                value = tl.where(source >= start, value, before)
                total += tl.load(weight + j * channels + at, mask=inside, other=0.0) * value.to(tl.float32)
                if STORES and j > 0:
                    tl.store(kept + (j - 1) * channels, value, mask=inside & (slot >= 0))
            to = out + token.to(tl.int64) * channels + at
            tl.store(to, activated(total, ACT).to(out.dtype.element_ty), mask=inside)


@triton.jit
def keep_inputs(
    x,
    x_token,
    state,
    state_slot,
    slots,
    starts,
    channels,
    J: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Replace the state of each row by its last J - 1 inputs, oldest first. Grid: rows, blocks of channels."""
    start, end, slot = row_of(starts, slots)
    at = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (at < channels) & (slot >= 0)
    kept = state + slot.to(tl.int64) * state_slot + at
    if end > start:
        for j in tl.static_range(J - 1):  # in this order an input is read before its place is overwritten
            source = end - (J - 1) + j
            value = tl.load(x + source.to(tl.int64) * x_token + at, mask=inside & (source >= start), other=0.0)
            place = (J - 1 + source - start) * channels
            before = tl.load(kept + place, mask=inside & (source < start), other=0.0)
            tl.store(kept + j * channels, tl.where(source >= start, value, before), mask=inside)


@capturable
def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    slots: Tensor,
    rows: AttentionMetadata,
    act: str = "identity",
) -> Tensor:
    (taps, channels), single = weight.shape, rows.max_query <= 1
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    kept, of_channels = (state, state.stride(0), slots, rows.query_starts), triton.cdiv(channels, CHANNELS)
    tokens = 1 if single else TOKENS
    convolve[len(slots), triton.cdiv(max(1, rows.max_query), tokens), of_channels](
        *(x, x.stride(0), weight, weight if bias is None else bias, *kept, out, channels, taps, tokens, CHANNELS),
        **{"ACT": act, "HAS_BIAS": bias is not None, "STORES": single},
    )
    if not single:
        keep_inputs[len(slots), of_channels](x, x.stride(0), *kept, channels, taps, CHANNELS)
    return out
