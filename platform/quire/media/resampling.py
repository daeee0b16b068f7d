"""Resamples audio with a windowed-sinc filter in polyphase form, as SciPy's `resample_poly` does."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

MAX_STEPS = 20_000
"""Maximum numerator and denominator of the ratio of rates, which determine the length of the filter. Other ratios are
rounded to the nearest one, an error of at most 0.01 %; the ratios of common rates are far below the limit."""

HALF_WIDTH = 10
"""Zero crossings of the filter on each side."""


def resample(samples: NDArray[np.float32], rate: int, target_rate: int) -> NDArray[np.float32]:
    """Resample to `target_rate` per second: float32 [samples] → float32 [samples × target_rate / rate, rounded up]."""
    ratio = _ratio(rate, target_rate)
    up, down = ratio.numerator, ratio.denominator
    half, taps = HALF_WIDTH * max(up, down), _low_pass(max(up, down)) * np.float32(up)
    count = -(-len(samples) * target_rate // rate)
    before, after = half // up + 2, half // up + 2 * down + 4
    padded = np.pad(samples, (before, after + max(0, -(-count * down // up) - len(samples))))
    output = np.empty(count, np.float32)
    for phase in range(min(up, count)):
        # output[phase + q · up] is a weighted sum of inputs, whose positions advance by `down` with each q
        last, offset = divmod(phase * down + half, up)
        filter_ = taps[offset::up][::-1].copy()
        start, rows = before + last - len(filter_) + 1, -(-(count - phase) // up)
        windows = as_strided(padded[start:], (rows, len(filter_)), (down * padded.itemsize, padded.itemsize))
        output[phase::up] = windows @ filter_
    return output


def _ratio(rate: int, target_rate: int) -> Fraction:
    exact = Fraction(target_rate, rate)
    if exact > 1:
        return 1 / (1 / exact).limit_denominator(MAX_STEPS)
    return exact.limit_denominator(max(MAX_STEPS, -(-rate // target_rate)))


@lru_cache(maxsize=4)
def _low_pass(steps: int) -> NDArray[np.float32]:
    """A low-pass filter with its cutoff at 1 / steps of the Nyquist frequency: float32 [2 · HALF_WIDTH · steps + 1]."""
    at = np.arange(-HALF_WIDTH * steps, HALF_WIDTH * steps + 1)
    taps = np.sinc(at / steps) * np.kaiser(len(at), 5.0)
    return (taps / taps.sum()).astype(np.float32)
