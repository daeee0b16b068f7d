"""Inputs of the operations that keep states, for `check_op`: rows of one token, long rows, empty rows, odd widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire_kernels.ops import AttentionMetadata

if TYPE_CHECKING:
    from quire_testing.ops.cases import RandomInputs

LENS = ((1,), (1, 1, 1), (70, 1, 0, 3, 17))
"""Tokens of the rows of a step."""

STATES: Mapping[str, int] = {"causal_conv": 3, "gated_delta": 5, "ssd_scan": 5, "selective_scan": 6}
"""By operation, the place of the state among its arguments, which it changes."""


def _rows(draw: RandomInputs) -> Iterator[tuple[int, Tensor, AttentionMetadata]]:
    """Number of tokens, slots of the rows among more slots than rows, and rows."""
    for lens in LENS:
        slots = torch.randperm(len(lens) + 2, generator=draw.generator)[: len(lens)].to(draw.device)
        yield sum(lens), slots, AttentionMetadata.unpaged(lens, draw.device)


def _floats(draw: RandomInputs, *shape: int) -> Tensor:
    return draw(*shape, dtype=torch.float32)


def _rates(draw: RandomInputs, *shape: int) -> Tensor:
    return -_floats(draw, *shape).abs()


def causal_conv(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """x, weight, bias, state, slots, rows, act; x a slice of something wider."""
    for tokens, slots, rows in _rows(draw):
        for channels, taps in ((150, 4), (16, 2), (8, 3)):
            x, state = draw(tokens, channels + 8)[:, 8:], draw(len(slots) + 2, taps - 1, channels)
            for bias, act in ((None, "silu"), (_floats(draw, channels), "identity")):
                yield x, _floats(draw, taps, channels), bias, state, slots, rows, act


def gated_delta(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """qkv, decay, weight, rate, bias, state, slots, rows, dims, factor; decays by head and by channel."""
    for tokens, slots, rows in _rows(draw):
        for keys, heads, dim, width in ((2, 4, 16, 24), (2, 2, 64, 128), (1, 3, 8, 8)):
            for by_channel in (False, True):
                decays = heads * dim if by_channel else heads
                yield (
                    draw(tokens, 2 * keys * dim + heads * width),
                    draw(tokens, decays),
                    draw(tokens, heads),
                    _rates(draw, heads),
                    _floats(draw, decays),
                    _floats(draw, len(slots) + 2, heads, dim, width),
                    slots,
                    rows,
                    (dim, width),
                    2.0 if by_channel else 1.0,
                )


def ssd_scan(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """xbc, step, rate, bias, skip, state, slots, rows, dims, limits."""
    for tokens, slots, rows in _rows(draw):
        for groups, heads, numbers, width in ((1, 4, 16, 24), (2, 4, 32, 64), (2, 2, 8, 8)):
            for limits in ((0.0, float("inf")), (0.1, 1.0)):
                yield (
                    draw(tokens, heads * width + 2 * groups * numbers),
                    draw(tokens, heads),
                    _rates(draw, heads),
                    *(_floats(draw, heads) for _ in range(2)),
                    _floats(draw, len(slots) + 2, heads, numbers, width),
                    slots,
                    rows,
                    (numbers, width),
                    limits,
                )


def selective_scan(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """x, step, b, c, rate, skip, state, slots, rows; B and C slices of one tensor."""
    for tokens, slots, rows in _rows(draw):
        for channels, numbers in ((40, 16), (16, 8)):
            b, c = draw(tokens, 2 * numbers).split(numbers, -1)
            x, step = draw(tokens, channels), draw(tokens, channels)
            state = _floats(draw, len(slots) + 2, numbers, channels)
            yield x, step, b, c, _rates(draw, numbers, channels), _floats(draw, channels), state, slots, rows


def gated_rms_norm(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """x, gate, weight, eps, act, gate_first; the gate a slice of something wider."""
    for tokens, parts, width in ((1, 1, 64), (7, 3, 20)):
        gate = draw(tokens, 2 * parts * width)[:, parts * width :].unflatten(-1, (parts, width))
        for weight in (_floats(draw, width), _floats(draw, parts, width)):
            for act, first in (("silu", False), ("silu", True), ("sigmoid", False)):
                yield draw(tokens, parts, width), gate, weight, 1e-5, act, first
