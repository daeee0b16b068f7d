"""The time of a step by its number of rows, measured while it runs."""

from __future__ import annotations

from bisect import bisect_right, insort

RATE = 0.1
"""Weight of a new measurement in a moving average."""
OUTLIER = 3.0
"""Steps that take so many times the average are not counted: the machine did something else."""
EXACT, ROUNDED_TO = 32, 8
"""Numbers of rows above the first are rounded to multiples of the second."""
NEAR = 0.75
"""Rows of a measured step over those of one that it stands for."""


class RowCosts:
    """Moving averages: seconds of steps by rows, seconds of a draft, tokens per second."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._known: list[int] = []
        self._draft_s = 0.0
        self._tokens, self._elapsed = 0.0, 0.0

    def observe(self, num_seqs: int, num_drafts: int, num_new: int, draft_s: float, step_s: float) -> None:
        """A step of one row for each of `num_seqs` sequences and each of `num_drafts` drafts, which gave `num_new`
        tokens."""
        num_rows = _rounded(num_seqs + num_drafts)
        average = self._seconds.get(num_rows)
        if average is not None and step_s > OUTLIER * average:
            return
        if average is None:
            insort(self._known, num_rows)
            average = step_s
        self._seconds[num_rows] = average + RATE * (step_s - average)
        if num_drafts:
            self._draft_s += RATE * (draft_s / num_drafts - self._draft_s)
        self._tokens += RATE * (num_new - self._tokens)
        self._elapsed += RATE * (draft_s + step_s - self._elapsed)

    def is_known(self, num_rows: int) -> bool:
        """Whether a step of so many rows, or of a few less, was measured."""
        i = bisect_right(self._known, _rounded(num_rows))
        return i > 0 and self._known[i - 1] >= NEAR * num_rows

    @property
    def most_rows(self) -> int:
        """Drafts that the next step may have: it may be longer than those that were measured, but not much."""
        return max(self._known[-1], 4)

    def least_gain(self, num_seqs: int) -> float:
        """Tokens that one more row must gain on average to be worth its time, in a step of `num_seqs` sequences."""
        if not self._elapsed:
            return 0.0
        return self._tokens / self._elapsed * (self._slope(num_seqs) + self._draft_s)

    def share_of_rows(self, num_seqs: int) -> float:
        """Time of `num_seqs` more rows over that of a step of `num_seqs` sequences."""
        plain = self._at(num_seqs)
        return 0.0 if plain is None else num_seqs * (self._slope(num_seqs) + self._draft_s) / plain

    def _slope(self, num_rows: int) -> float:
        """Seconds of one more row, from the nearest measurements at and above `num_rows`; 0 if there are none."""
        i = bisect_right(self._known, _rounded(num_rows))
        if i == 0 or i == len(self._known):
            return 0.0
        low, high = self._known[i - 1], self._known[i:]
        last = high[min(len(high), 4) - 1]
        return max(0.0, (self._seconds[last] - self._seconds[low]) / (last - low))

    def _at(self, num_rows: int) -> float | None:
        i = bisect_right(self._known, _rounded(num_rows))
        return self._seconds[self._known[i - 1]] if i else None


def _rounded(num_rows: int) -> int:
    return num_rows if num_rows <= EXACT else ROUNDED_TO * (num_rows // ROUNDED_TO)
