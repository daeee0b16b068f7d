"""How often guesses of a kind were right, in general and in a context."""

from __future__ import annotations

from collections.abc import Sequence

PRIOR = 3.0
"""Guesses that the first estimate counts as; the general share counts as much for each context."""
DECAY = 0.97
CONTEXTS = 64


class RightRates:
    """Shares of right guesses in one sequence. Older ones count less: DECAY for each that comes after.

    first_estimates: by kind. Contexts are below CONTEXTS; the place of a rate is CONTEXTS times the kind, plus the
    context.
    """

    def __init__(self, first_estimates: Sequence[float]) -> None:
        self._general = [[PRIOR * estimate, PRIOR] for estimate in first_estimates]  # right and all
        self._special: dict[int, list[float]] = {}

    def rate(self, place: int) -> float:
        """The probability that the next guess is right."""
        right, seen = self._general[place // CONTEXTS]
        counts = self._special.get(place)
        if counts is None:
            return right / seen
        return (counts[0] + PRIOR * right / seen) / (counts[1] + PRIOR)

    def add(self, place: int, is_right: bool) -> None:
        counts = self._general[place // CONTEXTS]
        counts[0], counts[1] = DECAY * counts[0] + is_right, DECAY * counts[1] + 1
        counts = self._special.get(place) or self._special.setdefault(place, [0.0, 0.0])
        counts[0], counts[1] = DECAY * counts[0] + is_right, DECAY * counts[1] + 1
