"""Sound at another rate, by a windowed-sinc filter in polyphase form: what SciPy's `resample_poly` computes."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

MAX_STEPS = 20_000
"""Largest numerator and denominator of a ratio of rates: they decide how long the filter is. Beyond, the nearest ratio
is taken; usual rates are far below, and an unusual one comes out at most 0.01 % too high or too low."""

HALF_WIDTH = 10
"""Zero crossings of the filter on each side."""


def resampled(samples: NDArray[np.float32], rate: int, wanted: int) -> NDArray[np.float32]:
    """float32 [samples] at `rate` → float32 [samples × wanted / rate, rounded up] at `wanted` samples a second."""
    ratio = _ratio(rate, wanted)
    up, down = ratio.numerator, ratio.denominator
    half, taps = HALF_WIDTH * max(up, down), _low_pass(max(up, down)) * np.float32(up)
    count = -(-len(samples) * wanted // rate)
    before, after = half // up + 2, half // up + 2 * down + 4
    padded = np.pad(samples, (before, after + max(0, -(-count * down // up) - len(samples))))
    made = np.empty(count, np.float32)
    for phase in range(min(up, count)):
        # Output phase + q · up is a sum over the inputs that its filter touches; they lie `down` further for each q.
        last, offset = divmod(phase * down + half, up)
        filter_ = taps[offset::up][::-1].copy()
        start, rows = before + last - len(filter_) + 1, -(-(count - phase) // up)
        windows = as_strided(padded[start:], (rows, len(filter_)), (down * padded.itemsize, padded.itemsize))
        made[phase::up] = windows @ filter_
    return made


def _ratio(rate: int, wanted: int) -> Fraction:
    exact = Fraction(wanted, rate)
    if exact > 1:
        return 1 / (1 / exact).limit_denominator(MAX_STEPS)
    return exact.limit_denominator(max(MAX_STEPS, -(-rate // wanted)))


@lru_cache(maxsize=4)
def _low_pass(steps: int) -> NDArray[np.float32]:
    """A filter that lets pass what is below 1 / steps of half its rate: float32 [2 · HALF_WIDTH · steps + 1]."""
    at = np.arange(-HALF_WIDTH * steps, HALF_WIDTH * steps + 1)
    taps = np.sinc(at / steps) * np.kaiser(len(at), 5.0)
    return (taps / taps.sum()).astype(np.float32)
