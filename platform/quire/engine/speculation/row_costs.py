"""The time of steps by their number of rows, measured while they run."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

RATE = 0.1
"""Weight of a new measurement in a moving average."""
OUTLIER = 3.0
"""Steps that take so many times the average are not counted: the machine did something else."""
EXACT, ROUNDED_TO = 32, 8
"""Numbers of rows above the first are rounded to multiples of the second."""
NEAR = 0.75
"""Rows of a measured step over those of one that it stands for."""
STALE = 512
"""Measurements after which one is forgotten that was not repeated."""
FIRST_ROWS = 4
"""Rows that a step with drafts may have before any was measured."""


@dataclass(slots=True)
class _Cost:
    """seconds: the least of the first two measurements, then their moving average. last: number of the last one."""

    seconds: float
    last: int
    is_known: bool = False


@dataclass(slots=True)
class CostCurve:
    """Seconds of a step by rows. A number of rows is known once it was measured twice: the first is often slow."""

    _costs: dict[int, _Cost] = field(default_factory=dict)
    _known: list[int] = field(default_factory=list)
    _num_measured: int = 0

    def add(self, num_rows: int, seconds: float) -> None:
        num_rows = _rounded(num_rows)
        self._num_measured += 1
        cost = self._costs.get(num_rows)
        if cost is None:
            self._costs[num_rows] = _Cost(seconds, self._num_measured)
        elif not cost.is_known:
            cost.seconds, cost.last, cost.is_known = min(cost.seconds, seconds), self._num_measured, True
            insort(self._known, num_rows)
        elif seconds < OUTLIER * cost.seconds:
            cost.seconds += RATE * (seconds - cost.seconds)
            cost.last = self._num_measured
        if self._num_measured % STALE == 0:
            self._forget()

    def _forget(self) -> None:
        self._costs = {rows: cost for rows, cost in self._costs.items() if cost.last > self._num_measured - STALE}
        self._known = sorted(rows for rows, cost in self._costs.items() if cost.is_known)

    @property
    def most_rows(self) -> int:
        """The largest number of rows that is known; 0 if none is."""
        return self._known[-1] if self._known else 0

    def is_known(self, num_rows: int) -> bool:
        """Whether steps of so many rows, or of a few less, were measured."""
        i = bisect_left(self._known, _rounded(num_rows) + 1)
        return i > 0 and self._known[i - 1] >= NEAR * num_rows

    def at(self, num_rows: int) -> float:
        """Seconds of a step, from the nearest that are known; there must be one."""
        known, i = self._known, bisect_left(self._known, num_rows)
        if i < len(known) and known[i] == num_rows:
            return self._costs[num_rows].seconds
        low, high = known[max(0, i - 1)], known[min(i, len(known) - 1)]
        if low == high:  # before the first, or after the last
            return self._costs[low].seconds + max(0, num_rows - low) * self.slope(known[0], low)
        share = (num_rows - low) / (high - low)
        return (1 - share) * self._costs[low].seconds + share * self._costs[high].seconds

    def slope(self, low: int, high: int) -> float:
        """Seconds of one more row between two numbers of rows, from the known ones at or within them; 0 if there are
        too few."""
        first, last = bisect_left(self._known, low), bisect_left(self._known, high + 1) - 1
        if first >= last:
            return 0.0
        low, high = self._known[first], self._known[last]
        return max(0.0, (self._costs[high].seconds - self._costs[low].seconds) / (high - low))


def _rounded(num_rows: int) -> int:
    return num_rows if num_rows <= EXACT else ROUNDED_TO * (num_rows // ROUNDED_TO)
