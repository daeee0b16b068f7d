"""How often guesses of a kind were right, in general and in a context."""

from __future__ import annotations

from bisect import bisect_left

PRIOR = 3.0
"""Guesses that the first estimate counts as; the general share counts as much for each context."""
DECAY = 0.97
LONGEST = (0, 1, 2, 3, 6, 15)
"""Of each class of runs but the last one, which has no end."""


def run_class(run: int) -> int:
    """From 0 to 6."""
    return bisect_left(LONGEST, run) if run < 16 else len(LONGEST)


class RightRates:
    """Shares of right guesses in one sequence. Older ones count less: DECAY for each that comes after."""

    def __init__(self) -> None:
        self._counts: dict[object, tuple[float, float]] = {}  # right and all

    def rate(self, kind: tuple[str, int], context: int, first_estimate: float) -> float:
        """The probability that the next guess is right."""
        right, seen = self._counts.get(kind, (0.0, 0.0))
        general = (right + PRIOR * first_estimate) / (seen + PRIOR)
        right, seen = self._counts.get((kind, context), (0.0, 0.0))
        return (right + PRIOR * general) / (seen + PRIOR)

    def add(self, kind: tuple[str, int], context: int, is_right: bool) -> None:
        for key in (kind, (kind, context)):
            right, seen = self._counts.get(key, (0.0, 0.0))
            self._counts[key] = DECAY * right + is_right, DECAY * seen + 1
