"""The time of steps by their number of rows, measured while they run."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

RATE, PACE_RATE = 0.05, 0.2
"""Weight of a new measurement in the moving averages of a cost and of the pace."""
MAX_SLOWER = 1.5
"""A step that takes longer than so many times its cost counts as this: the machine did something else."""
EXACT, ROUNDED_TO = 32, 8
"""Numbers of rows above the first are rounded to multiples of the second."""
NEAR = 0.75
"""Rows of a measured step over those of one that it stands for."""
FIRST_ROWS = 4
"""Rows that a step with drafts may have before any was measured."""


@dataclass(slots=True)
class _Cost:
    """seconds: the least of the first two measurements, then their moving average."""

    seconds: float
    is_known: bool = False


@dataclass(slots=True)
class CostCurve:
    """Seconds of a step by rows. A number of rows is known once it was measured twice: the first is often slow."""

    _costs: dict[int, _Cost] = field(default_factory=dict)
    _known: list[int] = field(default_factory=list)

    def add(self, num_rows: int, seconds: float) -> None:
        num_rows = _rounded(num_rows)
        cost = self._costs.get(num_rows)
        if cost is None:
            self._costs[num_rows] = _Cost(seconds)
        elif not cost.is_known:
            cost.seconds, cost.is_known = min(cost.seconds, seconds), True
            insort(self._known, num_rows)
        else:
            cost.seconds += RATE * (min(seconds, MAX_SLOWER * cost.seconds) - cost.seconds)

    def measured(self, num_rows: int) -> float | None:
        """Seconds of a step with just so many rows; None if that is not known."""
        cost = self._costs.get(_rounded(num_rows))
        return cost.seconds if cost is not None and cost.is_known else None

    @property
    def most_rows(self) -> int:
        """The largest number of rows that is known; 0 if none is."""
        return self._known[-1] if self._known else 0

    def is_known(self, num_rows: int) -> bool:
        """Whether steps of so many rows, or of a few less, were measured."""
        i = bisect_left(self._known, _rounded(num_rows) + 1)
        return i > 0 and self._known[i - 1] >= NEAR * num_rows

    def at(self, num_rows: float) -> float:
        """Seconds of a step, from the nearest that are known; there must be one."""
        known, i = self._known, bisect_left(self._known, num_rows)
        low, high = known[max(0, i - 1)], known[min(i, len(known) - 1)]
        if high in (low, num_rows):  # the first, the last, or one that is known
            return self._costs[high].seconds
        share = (num_rows - low) / (high - low)
        return (1 - share) * self._costs[low].seconds + share * self._costs[high].seconds

    def beyond(self, num_rows: float, less_rows: int, seconds: float) -> float:
        """Like `at`, but after the last known number in a line with a step of `less_rows` that takes `seconds`."""
        last = self.most_rows
        if num_rows <= last:
            return self.at(num_rows)
        more = self._costs[last].seconds - seconds
        slope = max(0.0, more / (last - less_rows)) if last > less_rows else seconds / less_rows
        return self._costs[last].seconds + (num_rows - last) * slope


class StepCosts:
    """Costs of steps without drafts and with some, in seconds at the pace of the first steps. The pace is measured with
    all steps, since it changes with what else the machine does: those of one kind tell nothing new of the others."""

    def __init__(self) -> None:
        self.plain, self.drafted = CostCurve(), CostCurve()
        self._pace = 1.0

    def add(self, num_rows: int, has_drafts: bool, seconds: float) -> None:
        curve, seconds = self.drafted if has_drafts else self.plain, seconds / self._pace
        if (cost := curve.measured(num_rows)) is not None:
            self._pace *= 1 + PACE_RATE * (min(seconds / cost, MAX_SLOWER) - 1)
        curve.add(num_rows, seconds)


def _rounded(num_rows: int) -> int:
    return num_rows if num_rows <= EXACT else ROUNDED_TO * (num_rows // ROUNDED_TO)
