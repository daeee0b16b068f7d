"""What drafts with estimated chances add to a step, measured while it runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

RATE = 0.02
"""Weight of one draft in the averages."""
DECAY, PRIOR, KEPT = 0.98, 8.0, 0.25
"""Of the counts of right drafts, with each chunk that has some; right drafts that they begin with, and keep."""
LEAST, MOST = 0.01, 3.0
"""Right drafts over those that should have been right, by which chances are corrected."""


class DraftChances:
    """For some limits, how many tokens of a draft have at least that chance, and how many of them should be right.

    limits: descending.
    """

    def __init__(self, limits: Sequence[float]) -> None:
        self._limits = limits
        self._lengths, self._gains = [0.0] * len(limits), [0.0] * len(limits)
        self._num_drafts = 0
        self._right = self._expected = PRIOR

    @property
    def are_given(self) -> bool:
        """Whether the drafter estimates them."""
        return self._num_drafts > 0

    @property
    def factor(self) -> float:
        """Right drafts over those that should have been right."""
        return min(max(self._right / self._expected, LEAST), MOST)

    def add(self, chances: Sequence[float]) -> None:
        """A draft was made. chances: descending, () = it is empty."""
        self._num_drafts += 1
        rate, factor = max(RATE, 1 / self._num_drafts), self.factor
        sums, negative = [0.0, *accumulate(chances)], [-chance for chance in chances]
        for i, limit in enumerate(self._limits):
            length = bisect_left(negative, -limit / factor + 1e-9)
            self._lengths[i] += rate * (length - self._lengths[i])
            self._gains[i] += rate * (sums[length] - self._gains[i])

    def add_result(self, num_right: int, chances: Sequence[float]) -> None:
        """Drafts of these chances were verified."""
        self._right = DECAY * self._right + (1 - DECAY) * KEPT + num_right
        self._expected = DECAY * self._expected + (1 - DECAY) * KEPT + sum(chances)

    def length(self, chances: Sequence[float], limit: float) -> int:
        """How many drafts have at least that chance to be right."""
        factor = self.factor
        return bisect_left([-chance for chance in chances], -limit / factor + 1e-9)

    def of_limit(self, i: int) -> tuple[float, float]:
        """Drafts per sequence and step at a limit, and how many of them should be right."""
        return self._lengths[i], self._gains[i] * self.factor
