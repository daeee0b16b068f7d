"""Finds the quickest settings of a launch by measuring some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from quire_kernels.triton_gpu.tuning.settings import LaunchSettings

S = TypeVar("S", bound=LaunchSettings)

MIN_GAIN = 0.03
"""Of a setting over the one before, for which it is taken: times are not known more exactly."""

MAX_ROUNDS = 4


@dataclass(frozen=True)
class QuickestSettings(Generic[S]):
    """default_s, seconds: of a launch with the default settings, and with the quickest."""

    settings: S
    default_s: float
    seconds: float


def quickest(default: S, seconds_of: Callable[[S], float]) -> QuickestSettings[S]:
    """Change one value at a time as long as that gains time.

    seconds_of: time of a launch with some settings, infinite if they cannot be launched.
    """
    measured = {default: seconds_of(default)}
    best = default
    for _ in range(MAX_ROUNDS):
        for other in best.neighbours():
            if other not in measured:
                measured[other] = seconds_of(other)
        nearest = min((best, *best.neighbours()), key=measured.__getitem__)
        if measured[nearest] > (1 - MIN_GAIN) * measured[best]:
            break
        best = nearest
    return QuickestSettings(best, measured[default], measured[best])
