"""How often guesses of a kind were right, in general and in a context."""

from __future__ import annotations

from collections.abc import Sequence

PRIOR = 3.0
"""Guesses that the first estimate counts as; the general share counts as much for each context."""
DECAY = 0.97
CONTEXTS = 64


class RightRates:
    """Shares of right guesses in one sequence. Older ones count less: DECAY for each that comes after.

    first_estimates: by kind. Contexts are below CONTEXTS.
    """

    def __init__(self, first_estimates: Sequence[float]) -> None:
        self._general = [[PRIOR * estimate, PRIOR] for estimate in first_estimates]  # right and all
        self._special: dict[int, list[float]] = {}

    def rate(self, kind: int, context: int) -> float:
        """The probability that the next guess is right."""
        right, seen = self._general[kind]
        counts = self._special.get(kind * CONTEXTS + context)
        if counts is None:
            return right / seen
        return (counts[0] + PRIOR * right / seen) / (counts[1] + PRIOR)

    def add(self, kind: int, context: int, is_right: bool) -> None:
        counts = self._general[kind]
        counts[0], counts[1] = DECAY * counts[0] + is_right, DECAY * counts[1] + 1
        counts = self._special.setdefault(kind * CONTEXTS + context, [0.0, 0.0])
        counts[0], counts[1] = DECAY * counts[0] + is_right, DECAY * counts[1] + 1
