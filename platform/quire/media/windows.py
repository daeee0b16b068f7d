"""Splits long speech into windows at quiet points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SEARCH_S = 1.0
"""Seconds before the end of a window in which the quietest point is searched."""

QUIET_S = 0.1
"""Seconds over which the energy of a point is measured."""


def split_windows(samples: NDArray[np.float32], rate: int, window_s: float) -> Iterator[tuple[int, int]]:
    """Split samples [samples] at `rate` into consecutive windows of at most `window_s` seconds: (begin, end) of each.

    All windows but the last one end at the quietest point of their last second.
    """
    max_length = max(1, int(window_s * rate))
    search, point = min(int(SEARCH_S * rate), max_length // 2), max(1, int(QUIET_S * rate))
    begin = 0
    while len(samples) - begin > max_length:
        end = begin + max_length
        cut_at = end - search + quietest_point(samples[end - search : end], point)
        yield begin, cut_at
        begin = cut_at
    yield begin, len(samples)


def quietest_point(samples: NDArray[np.float32], length: int) -> int:
    """The middle of the `length` consecutive samples with the lowest energy; the last one on a tie."""
    if len(samples) < length:
        return len(samples)
    sums = np.concatenate(([0.0], np.cumsum(np.square(samples, dtype=np.float64))))  # [samples + 1]
    energy = sums[length:] - sums[:-length]
    return int(len(energy) - 1 - np.argmin(energy[::-1])) + length // 2
