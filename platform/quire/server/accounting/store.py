"""The database of usage and audit entries, as its one writer sees it. Every method blocks, in one thread at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quire.server.accounting.audit_entry import AuditEntry
from quire.server.accounting.opening import COLUMNS, SINGLE, open_database
from quire.server.accounting.retention import RetentionLimits, UsageRetention
from quire.types import UsageRecord

_INSERT = f"INSERT OR IGNORE INTO usage ({', '.join(COLUMNS)}, kind) VALUES ({', '.join('?' * len(COLUMNS))}, {SINGLE})"
_INSERT_AUDIT = (
    "INSERT OR IGNORE INTO audit (id, time, actor, action, target, outcome, details) VALUES (?, ?, ?, ?, ?, ?, ?)"
)

MAX_LOG_ROWS, IDLE_LOG_ROWS = 4000, 500
"""So many rows are in the write-ahead log before it is moved into the file, which waits for the disk: under load and
when nothing else is to be written. 4000 transactions of a row each are some 50 MB."""


class UsageStore:
    """The database in a file. Raises ConfigError if it cannot be used."""

    def __init__(self, path: Path, limits: RetentionLimits) -> None:
        self.path = path
        self._num_in_log = 0
        self._connection = open_database(path)
        self._retention = UsageRetention(self._connection, limits)

    def write(self, records: Sequence[UsageRecord], entries: Sequence[AuditEntry] = ()) -> None:
        """Store records and audit entries in one transaction; those with a known id are left out."""
        rows = [tuple(getattr(record, name) for name in COLUMNS) for record in records]
        with self._transaction():
            added = self._connection.executemany(_INSERT, rows).rowcount if rows else 0
            self._connection.executemany(_INSERT_AUDIT, [entry.row for entry in entries])
        self._retention.num_single += added
        self._num_in_log += len(rows)

    def tidy(self, is_idle: bool) -> None:
        """Move the write-ahead log into the file if it has become long, and sum or delete some of what is too old."""
        if self._num_in_log >= (IDLE_LOG_ROWS if is_idle else MAX_LOG_ROWS):
            self._num_in_log = 0
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # waits for no reader
        if self._retention.is_due:
            with self._transaction():
                self._retention.tidy()

    def close(self) -> None:
        """Close the file; without another process that has it open, everything is in it then."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite ends it by itself when the disk is full
                self._connection.execute("ROLLBACK")
            raise
