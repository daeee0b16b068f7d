"""Sums records of one hour or day: of old requests, and of those that the database cannot take at the moment."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from dataclasses import replace

from quire.types import UsageRecord
from quire.types.usage import UsageKey

HOUR_S, DAY_S = 3600, 86_400
OTHER = "other"


class BoundedSums:
    """Sums of records by hour and key. At most `max_sums`: further keys are counted as tenant, adapter and endpoint
    `other`."""

    def __init__(self, max_sums: int) -> None:
        self._max = max_sums
        self._sums: dict[tuple[int, UsageKey], UsageRecord] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, record: UsageRecord) -> None:
        """Add a record. Its sum has an id of its own."""
        hour = int(record.ended // HOUR_S)
        if (hour, record.key) not in self._sums and len(self._sums) >= self._max:
            hour, record = 0, with_others(record)
        before = self._sums.get((hour, record.key))
        self._sums[hour, record.key] = (
            replace(record, id=f"sum-{uuid.uuid4().hex}") if before is None else before.plus(record)
        )

    def take(self) -> list[UsageRecord]:
        """The sums, which are empty then."""
        taken, self._sums = list(self._sums.values()), {}
        return taken


def with_others(record: UsageRecord) -> UsageRecord:
    """A record under the name of all that have no sum of their own."""
    return replace(record, tenant=OTHER, adapter=OTHER, endpoint=OTHER)


def day_of(record: UsageRecord) -> int:
    """The day on which it ended: the Unix time of its beginning, in UTC."""
    return int(record.ended // DAY_S) * DAY_S


def day_id(day: int, key: UsageKey) -> str:
    """The id of the sum of a day. Equal for equal arguments."""
    return f"day-{day}-{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:32]}"


def by_day(records: Iterable[UsageRecord]) -> list[UsageRecord]:
    """One record for each day and key, with the id of that sum."""
    sums: dict[str, UsageRecord] = {}
    for record in records:
        day = day_of(record)
        name = day_id(day, record.key)
        of_day = replace(record, id=name, ended=float(day))
        sums[name] = sums[name].plus(of_day) if name in sums else of_day
    return list(sums.values())
