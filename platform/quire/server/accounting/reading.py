"""Reads the database of usage and audit entries, in worker threads and within limits of number and time."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from quire.errors import Overloaded
from quire.server.accounting.opening import open_to_read

MAX_READERS, MAX_WAITING = 2, 32
MAX_READ_S = 10.0
STEPS_BETWEEN_LOOKS = 10_000
"""Instructions of SQLite between two looks at the clock."""


class UsageReader:
    """Runs queries on the database in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._slots = asyncio.Semaphore(MAX_READERS)
        self._waiting = 0

    async def rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """All rows of a statement. Raises Overloaded if too many readers wait, it takes too long, or reading fails."""
        if self._waiting >= MAX_WAITING:
            raise Overloaded("Too many requests read the accounts; try again later.")
        self._waiting += 1
        try:
            async with self._slots:
                return await asyncio.to_thread(self._read, statement, values)
        finally:
            self._waiting -= 1

    def _read(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        until = time.monotonic() + MAX_READ_S
        try:
            with closing(open_to_read(self._path)) as connection:
                connection.set_progress_handler(lambda: time.monotonic() > until, STEPS_BETWEEN_LOOKS)
                return connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            if time.monotonic() > until:
                raise Overloaded(f"The query took longer than {MAX_READ_S:g} s; ask for a shorter time.") from error
            raise Overloaded(f"The database of usage cannot be read: {error}.") from error


def audit_sql(before: int | None, limit: int, filters: Sequence[tuple[str, str]]) -> tuple[str, list[Any]]:
    """The newest audit entries: the statement and its values. before: number of the last entry of the page before.

    filters: of the columns actor, action, target.
    """
    where, values = ["1"], list[Any]()
    if before is not None:
        where.append("number < ?")
        values.append(before)
    for column, value in filters:
        where.append(f"{column} = ?")
        values.append(value)
    columns = "number, id, time, actor, action, target, outcome, details"
    text = f"SELECT {columns} FROM audit WHERE {' AND '.join(where)} ORDER BY number DESC LIMIT ?"
    return text, [*values, limit + 1]


def audit_answer(rows: Sequence[Sequence[Any]], limit: int) -> dict[str, Any]:
    """The body of the answer to rows of `audit_sql`."""
    data = [
        {
            "object": "audit.entry",
            "id": row[1],
            "time": row[2],
            "actor": row[3],
            "action": row[4],
            "target": row[5],
            "outcome": row[6],
            "details": json.loads(row[7]),
        }
        for row in rows[:limit]
    ]
    more = len(rows) > limit
    return {"object": "list", "data": data, "has_more": more, "next_page": str(rows[limit - 1][0]) if more else None}
