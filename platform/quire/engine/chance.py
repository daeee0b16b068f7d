"""The random numbers that tokens are drawn with: of a seed and a count, so that no row can see its neighbours."""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def _mix(value: np.ndarray) -> np.ndarray:
    """splitmix64's output function (Steele, Lea & Flood, 2014) of uint64 numbers, wrapping around."""
    value = (value ^ (value >> np.uint64(30))) * _MIX1
    value = (value ^ (value >> np.uint64(27))) * _MIX2
    return value ^ (value >> np.uint64(31))


def uniforms(seeds: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """One number of [0, 1) for each pair of a seed (uint64 [rows]) and a number of tokens drawn before.

    A counter-based generator: nothing is remembered, so order, batch and preemption cannot matter.
    """
    with np.errstate(over="ignore"):
        stream = _mix(seeds + _GOLDEN)
        mixed = _mix(stream + (counts.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
