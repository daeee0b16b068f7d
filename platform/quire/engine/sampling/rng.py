"""Counter-based random numbers: each depends only on a seed and a count, never on the batch.

splitmix64: Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

import numpy as np

MASK64 = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def splitmix64(states: np.ndarray) -> np.ndarray:
    """The next output for uint64 states; arithmetic wraps around."""
    value = states + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX1
    value = (value ^ (value >> np.uint64(27))) * _MIX2
    return value ^ (value >> np.uint64(31))


def uniforms(seeds: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """float64 [rows] in [0, 1). seeds: uint64 [rows]. counts: [rows], tokens drawn before.

    Without state, so that order, batch and preemption cannot matter.
    """
    mixed = splitmix64(splitmix64(seeds) + counts.astype(np.uint64) * _GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def seq_seed(seed: int, index: int) -> int:
    """Seed of one sequence of a request, whenever it starts."""
    states = np.array([seed & MASK64], np.uint64)
    return int(splitmix64(splitmix64(states) ^ np.uint64(index))[0])
