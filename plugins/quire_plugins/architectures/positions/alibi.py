"""Slopes of ALiBi (arXiv 2108.12409) for any number of heads, in the two ways that families have."""

from __future__ import annotations

import math


def bloom_slopes(heads: int) -> tuple[float, ...]:
    """Powers of 2 ** (-8 / n) for the largest n = 2 ** k up to `heads`, then every second for 2n (BLOOM, Falcon)."""
    whole = 2 ** math.floor(math.log2(heads))
    between = _powers(2 * whole)[0::2]
    return (_powers(whole) + between[: heads - whole])[:heads]


def mpt_slopes(heads: int, most: float) -> tuple[float, ...]:
    """Powers of 2 ** (-most / n) for the smallest n = 2 ** k from `heads` on: every second one, then the rest (MPT)."""
    whole = 2 ** math.ceil(math.log2(heads))
    powers = _powers(whole, most)
    return powers if whole == heads else (powers[1::2] + powers[0::2])[:heads]


def _powers(count: int, most: float = 8.0) -> tuple[float, ...]:
    return tuple(2.0 ** (-most * i / count) for i in range(1, count + 1))
