"""Calls of the ops that keep states, at the sizes of Qwen3-Next and of Mamba models of 7B."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu.report.case import TOKENS, Case, meta
from quire_kernels.triton_gpu.state import convolution, delta, mamba, norm

KEY_HEADS, HEADS, DIM = 16, 32, 128
SSD_HEADS, GROUPS, NUMBERS, WIDTH = 128, 8, 128, 64
CHANNELS, TAPS, SELECTIVE_NUMBERS = 8192, 4, 16
LONG = 2048
"""Tokens of a prompt."""


def floats(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.float32)


def state_cases() -> list[Case]:
    """Steps of rows with one token, and of one prompt."""
    found = []
    for name, count, length in (("decode", TOKENS, 1), ("prefill", 1, LONG)):
        lens, starts = np.full(count, length, np.int32), meta(count + 1, dtype=torch.int32)
        rows = AttentionMetadata(starts, starts[1:], meta(count, 0, dtype=torch.int32), lens, lens, length, length)
        slots, tokens = meta(count, dtype=torch.int64), count * length
        at = (slots, rows)

        inputs = 2 * KEY_HEADS * DIM + HEADS * DIM
        given = meta(tokens, inputs), meta(tokens, HEADS), meta(tokens, HEADS), floats(HEADS), floats(HEADS)
        state = floats(count, HEADS, DIM, DIM)
        moved = 8 * state.numel() + 2 * tokens * (inputs + HEADS * DIM)
        call = partial(delta.gated_delta, *given, state, *at, (DIM, DIM))
        found.append(Case(f"gated_delta {name}", call, moved, tokens * HEADS * 6 * DIM * DIM))

        inputs = SSD_HEADS * WIDTH + 2 * GROUPS * NUMBERS
        rate, bias, skip = (floats(SSD_HEADS) for _ in range(3))
        xbc, step = meta(tokens, inputs), meta(tokens, SSD_HEADS)
        state = floats(count, SSD_HEADS, NUMBERS, WIDTH)
        moved = 8 * state.numel() + 2 * tokens * (inputs + SSD_HEADS * WIDTH)
        call = partial(mamba.ssd_scan, xbc, step, rate, bias, skip, state, *at, (NUMBERS, WIDTH))
        found.append(Case(f"ssd_scan {name}", call, moved, tokens * SSD_HEADS * 4 * NUMBERS * WIDTH))

        x, step, b, c = (meta(tokens, width) for width in (CHANNELS, CHANNELS, SELECTIVE_NUMBERS, SELECTIVE_NUMBERS))
        state = floats(count, SELECTIVE_NUMBERS, CHANNELS)
        rates = floats(SELECTIVE_NUMBERS, CHANNELS), floats(CHANNELS)
        call = partial(mamba.selective_scan, x, step, b, c, *rates, state, *at)
        flops = 6 * tokens * CHANNELS * SELECTIVE_NUMBERS
        found.append(Case(f"selective_scan {name}", call, 8 * state.numel() + 6 * tokens * CHANNELS, flops))

        state = meta(count, TAPS - 1, CHANNELS)
        call = partial(convolution.causal_conv, x, floats(TAPS, CHANNELS), None, state, *at, "silu")
        found.append(Case(f"causal_conv {name}", call, 4 * state.numel() + 4 * tokens * CHANNELS))
    gated = meta(TOKENS, HEADS, DIM), meta(TOKENS, HEADS, DIM), floats(DIM), 1e-6
    return [*found, Case("gated_rms_norm", partial(norm.gated_rms_norm, *gated), 6 * TOKENS * HEADS * DIM)]
