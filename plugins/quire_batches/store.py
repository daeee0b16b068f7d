"""The journal of files, batches and answered lines: a SQLite database, which is on the disk after each call.

A line has one row at most, by the primary key of `results`, however often it was computed. The end of a batch, the
files with its answers, and the removal of its rows are one transaction.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from quire_batches.records import RUNNING, Result, StoredBatch, StoredFile

R = TypeVar("R", StoredFile, StoredBatch)

SCHEMA = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, document BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, document BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS results (
    batch_id TEXT NOT NULL, number INTEGER NOT NULL, is_good INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (batch_id, number));
"""


class Documents(Generic[R]):
    """The rows of a table, each of which is a record as JSON."""

    def __init__(self, connection: sqlite3.Connection, table: str, kind: type[R]) -> None:
        self._connection, self._table = connection, table
        self._decode: Callable[[bytes], R] = msgspec.json.Decoder(kind).decode

    def add(self, record: R) -> None:
        self._run("INSERT INTO {} (id, owner, document) VALUES (?, ?, ?)", record.id, record.owner, _json(record))

    def save(self, record: R) -> None:
        """Replace the record with this id."""
        self._run("UPDATE {} SET document = ? WHERE id = ?", _json(record), record.id)

    def remove(self, record_id: str) -> None:
        self._run("DELETE FROM {} WHERE id = ?", record_id)

    def get(self, record_id: str) -> R | None:
        """The record with this id."""
        row = self._run("SELECT document FROM {} WHERE id = ?", record_id).fetchone()
        return self._decode(row[0]) if row else None

    def all(self) -> list[R]:
        """Every record, the oldest first."""
        return [self._decode(row[0]) for row in self._run("SELECT document FROM {} ORDER BY number")]

    def of(self, owner: str, after: str | None, ascending: bool) -> Iterator[R]:
        """The records of a client, those that come after the record `after`."""
        operator, order = (">", "ASC") if ascending else ("<", "DESC")
        query = f"SELECT document FROM {{}} WHERE owner = ? {{bound}} ORDER BY number {order}"
        if after is None:
            rows = self._run(query.replace("{bound}", ""), owner)
        else:
            bound = f"AND number {operator} (SELECT number FROM {self._table} WHERE id = ?)"
            rows = self._run(query.replace("{bound}", bound), owner, after)
        return (self._decode(row[0]) for row in rows)

    def _run(self, query: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(query.replace("{}", self._table), values)


class BatchStore:
    """The database in a file. For one thread at a time; `answers` opens a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.executescript(SCHEMA)
        self.files = Documents(self._connection, "files", StoredFile)
        self.batches = Documents(self._connection, "batches", StoredBatch)
        sizes = self._connection.execute("SELECT COALESCE(SUM(LENGTH(content)), 0) FROM results").fetchone()
        self._result_bytes: int = sizes[0]

    def close(self) -> None:
        self._connection.close()

    @property
    def num_bytes(self) -> int:
        """Bytes of all files and of the results of unfinished batches."""
        return self._result_bytes + sum(file.num_bytes for file in self.files.all())

    def unfinished(self) -> list[StoredBatch]:
        """The batches that have not ended, the oldest first."""
        return [batch for batch in self.batches.all() if batch.status in RUNNING]

    def update(self, batch_id: str, change: Callable[[StoredBatch], StoredBatch]) -> StoredBatch:
        """Replace a batch by what `change` makes of it, and return that."""
        with self._transaction():
            batch = self.batches.get(batch_id)
            assert batch is not None, "only ended batches are removed"
            changed = change(batch)
            self.batches.save(changed)
        return changed

    def add_results(self, results: Iterable[Result]) -> None:
        """Store answers, and count them in their batches. A second answer to a line is dropped."""
        counts: Counter[tuple[str, bool]] = Counter()
        num_bytes = 0
        with self._transaction():
            for one in results:
                row = (one.batch_id, one.number, one.is_good, one.content)
                if self._connection.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", row).rowcount:
                    counts[one.batch_id, one.is_good] += 1
                    num_bytes += len(one.content)
            for batch_id in {batch_id for batch_id, _ in counts}:
                batch = self.batches.get(batch_id)
                assert batch is not None, "a batch with running lines has not ended"
                completed, failed = batch.completed + counts[batch_id, True], batch.failed + counts[batch_id, False]
                self.batches.save(msgspec.structs.replace(batch, completed=completed, failed=failed))
        self._result_bytes += num_bytes

    def answered(self, batch_id: str) -> set[int]:
        """The numbers of the lines that have answers."""
        rows = self._connection.execute("SELECT number FROM results WHERE batch_id = ?", (batch_id,))
        return {row[0] for row in rows}

    @contextmanager
    def answers(self, batch_id: str) -> Iterator[Iterator[tuple[int, bool, bytes]]]:
        """(line number, is good, content) of the answers in order of the lines; in any thread."""
        with closing(sqlite3.connect(self._path)) as connection:
            query = "SELECT number, is_good, content FROM results WHERE batch_id = ? ORDER BY number"
            yield (
                (number, bool(is_good), content) for number, is_good, content in connection.execute(query, (batch_id,))
            )

    def finish(self, batch: StoredBatch, files: Sequence[StoredFile]) -> None:
        """Store the end of a batch with the files of its answers, and remove its rows."""
        with self._transaction():
            for file in files:
                self.files.add(file)
            self.batches.save(batch)
            self._connection.execute("DELETE FROM results WHERE batch_id = ?", (batch.id,))
        self._connection.execute("PRAGMA incremental_vacuum").fetchall()
        (self._result_bytes,) = self._connection.execute(
            "SELECT COALESCE(SUM(LENGTH(content)), 0) FROM results"
        ).fetchone()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _json(record: StoredFile | StoredBatch) -> bytes:
    return msgspec.json.encode(record)
