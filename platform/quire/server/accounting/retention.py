"""Keeps the database bounded: rows of single requests become sums of days, and the oldest days and entries go."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass, replace

from quire.server.accounting.opening import COLUMNS, DAY, SINGLE
from quire.server.accounting.sums import DAY_S, by_day, day_id, with_others
from quire.types import UsageRecord
from quire.types.usage import AMOUNTS

PORTION = 1000
"""Rows that one transaction sums: some 20 ms, for which answers may wait."""

MAX_DAYS = 800
"""Sums of days older than this are deleted."""

MAX_SUMS_PER_DAY = 2000
"""Further tenants, adapters and endpoints of a day are summed as `other`."""

MAX_ENTRIES = 100_000
"""Audit entries that are kept."""

INTERVAL_S = 60.0

_ADD = f"""
INSERT INTO usage ({", ".join(COLUMNS)}, kind) VALUES ({", ".join("?" * len(COLUMNS))}, {DAY})
ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in AMOUNTS)}"""


@dataclass(frozen=True, kw_only=True)
class RetentionLimits:
    """Rows of single requests are kept for so many days, and at most so many of them."""

    days: int
    rows: int


class UsageRetention:
    """Applies limits to a database, portion by portion. num_single: rows of single requests."""

    def __init__(self, connection: sqlite3.Connection, limits: RetentionLimits) -> None:
        self._connection, self._limits = connection, limits
        (self.num_single,) = connection.execute("SELECT count(*) FROM usage WHERE kind = ?", (SINGLE,)).fetchone()
        self._next_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether `tidy` may have something to do."""
        return self.num_single > self._limits.rows or time.monotonic() >= self._next_s

    def tidy(self) -> None:
        """Sum or delete a portion, within the caller's transaction."""
        now = time.time()
        cutoff = int((now - self._limits.days * DAY_S) // DAY_S) * DAY_S
        excess = self.num_single - self._limits.rows
        if self._sum("ended < ?", cutoff) or (excess > 0 and self._sum("ended < ?", now)):
            return
        self._next_s = time.monotonic() + INTERVAL_S
        oldest = now - MAX_DAYS * DAY_S
        self._connection.execute("DELETE FROM usage WHERE kind = ? AND ended < ?", (DAY, oldest))
        self._connection.execute(
            "DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", (MAX_ENTRIES,)
        )

    def _sum(self, where: str, value: float) -> int:
        """Sum the oldest rows of single requests among these; the number of rows."""
        rows = self._connection.execute(
            f"SELECT rowid, {', '.join(COLUMNS)} FROM usage WHERE kind = ? AND {where} ORDER BY ended LIMIT ?",
            (SINGLE, value, PORTION),
        ).fetchall()
        for record in by_day(UsageRecord(**dict(zip(COLUMNS, row[1:], strict=True))) for row in rows):
            kept = self._within_bound(record)
            self._connection.execute(_ADD, tuple(getattr(kept, name) for name in COLUMNS))
        self._connection.executemany("DELETE FROM usage WHERE rowid = ?", [(row[0],) for row in rows])
        self.num_single -= len(rows)
        return len(rows)

    def _within_bound(self, record: UsageRecord) -> UsageRecord:
        """The record, under `other` if its day has as many sums as it may have and none for it."""
        if self._connection.execute("SELECT 1 FROM usage WHERE id = ?", (record.id,)).fetchone():
            return record
        day = (DAY, record.ended)
        (count,) = self._connection.execute("SELECT count(*) FROM usage WHERE kind = ? AND ended = ?", day).fetchone()
        if count < MAX_SUMS_PER_DAY:
            return record
        other = with_others(record)
        return replace(other, id=day_id(int(other.ended), other.key))
