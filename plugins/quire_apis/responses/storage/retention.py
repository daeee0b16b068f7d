"""Keeps the database within its limits: deletes what is too old, and what was used the longest time ago.

The client that has the most gives way first, so that one client cannot displace what others keep.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What is kept: at most `count` responses and conversations with `num_bytes` together, each for `age_s` seconds
    after its last use.
    """

    count: int
    num_bytes: int
    age_s: float


@dataclass(slots=True)
class _Total:
    """What one client has."""

    count: int = 0
    num_bytes: int = 0


class Retention:
    """The totals of a database. Its methods are called within a transaction."""

    def __init__(self, connection: sqlite3.Connection, limits: Limits) -> None:
        self._connection, self._limits = connection, limits
        self._totals: dict[str, _Total] = {}

    @property
    def oldest(self) -> float:
        """What was last used before this time (Unix time) is gone."""
        return time.time() - self._limits.age_s

    def reload(self) -> None:
        """Count what the database has."""
        rows = self._connection.execute("SELECT owner, count(*), sum(bytes) FROM kept GROUP BY owner")
        self._totals = {owner: _Total(count, size) for owner, count, size in rows}

    def add(self, owner: str, count: int, num_bytes: int) -> None:
        """Count what was added; negative for what was removed."""
        total = self._totals.setdefault(owner, _Total())
        total.count += count
        total.num_bytes += num_bytes
        if not total.count:
            del self._totals[owner]

    def grow(self, owner: str, id: str, num_bytes: int) -> None:
        """Count bytes that were added to what is kept."""
        self._connection.execute("UPDATE kept SET bytes = bytes + ? WHERE id = ?", (num_bytes, id))
        self.add(owner, 0, num_bytes)

    def remove(self, owner: str, id: str) -> None:
        """Delete a response or a conversation with its items."""
        (size,) = self._connection.execute("SELECT bytes FROM kept WHERE id = ?", (id,)).fetchone()
        self._connection.execute("DELETE FROM items WHERE holder = ?", (id,))
        self._connection.execute("DELETE FROM kept WHERE id = ?", (id,))
        self.add(owner, -1, -size)

    def keep_within(self, newest: str) -> None:
        """Delete what is too old, then what exceeds the limits. newest: what was just written; it goes last."""
        old = self._connection.execute(
            "SELECT owner, id FROM kept WHERE used < ? AND status NOT IN ('queued', 'in_progress')", (self.oldest,)
        )
        for owner, id in old.fetchall():
            self.remove(owner, id)
        row = self._connection.execute("SELECT owner, bytes FROM kept WHERE id = ?", (newest,)).fetchone()
        if row is not None and row[1] > self._limits.num_bytes:
            self.remove(row[0], newest)
        while self._is_exceeded() and self._remove_one(newest):
            pass

    def _is_exceeded(self) -> bool:
        totals = self._totals.values()
        count, num_bytes = sum(one.count for one in totals), sum(one.num_bytes for one in totals)
        return count > self._limits.count or num_bytes > self._limits.num_bytes

    def _remove_one(self, newest: str) -> bool:
        """Delete what the client with the most used the longest time ago; False if nothing may be deleted."""
        limits = self._limits
        by_share = sorted(
            self._totals, key=lambda name: self._share(self._totals[name], limits.count, limits.num_bytes), reverse=True
        )
        for owner in by_share:
            row = self._connection.execute(
                "SELECT id FROM kept WHERE owner = ? AND id != ? AND status NOT IN ('queued', 'in_progress')"
                " ORDER BY used LIMIT 1",
                (owner, newest),
            ).fetchone()
            if row is not None:
                self.remove(owner, row[0])
                return True
        return False

    @staticmethod
    def _share(total: _Total, count: int, num_bytes: int) -> float:
        return max(total.count / max(1, count), total.num_bytes / max(1, num_bytes))
