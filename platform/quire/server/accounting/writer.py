"""Writes records and audit entries in a thread, in transactions of what has arrived meanwhile.

If the database cannot be written (locked, disk full), it is tried again, and what waits is bounded: records beyond
`MAX_WAITING` are summed by hour and key, so that none is lost.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread

from quire.server.accounting.audit_entry import AuditEntry
from quire.server.accounting.store import UsageStore
from quire.server.accounting.sums import BoundedSums
from quire.types import UsageRecord

log = logging.getLogger("quire.server")

MAX_WAITING = 20_000
MAX_SUMS = 5000
MAX_ENTRIES_WAITING = 10_000
"""Limits of what waits for the database: single records, sums, audit entries."""

RETRY_S, MAX_RETRY_S = 0.2, 5.0
"""Pauses after a failure; each is twice as long as the one before."""

LOG_EVERY_S = 60.0

IDLE_S = 0.5
"""After so long without records the database is tidied."""


@dataclass
class _Batch:
    """What one transaction writes. end: the number of the last call of `put` that it has."""

    records: list[UsageRecord] = field(default_factory=list)
    entries: list[AuditEntry] = field(default_factory=list)
    end: int = 0


class WriterThread:
    """Writes to `store`, and audit entries also to `audit_log`, a file of JSON lines.

    on_written: called in the thread with records that are stored now. num_put: calls of `put` so far. num_done: how
    many of them are stored.
    """

    def __init__(
        self,
        store: UsageStore | None,
        audit_log: Path | None,
        on_written: Callable[[Sequence[UsageRecord]], None],
    ) -> None:
        self._store, self._audit_log, self._on_written = store, audit_log, on_written
        self._records: deque[UsageRecord] = deque()
        self._sums = BoundedSums(MAX_SUMS)
        self._entries: deque[AuditEntry] = deque()
        self._lines: deque[bytes] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._closing = False
        self._logged_s = -LOG_EVERY_S
        self.num_put = self.num_done = 0

    def put(self, records: Sequence[UsageRecord] = (), entries: Sequence[AuditEntry] = ()) -> None:
        """Have these written soon. Cheap, in any thread."""
        with self._changed:
            self.num_put += 1
            for record in records:
                if len(self._records) < MAX_WAITING:
                    self._records.append(record)
                else:
                    self._sums.add(record)
            self._entries += entries
            self._lines += [one.line for one in entries] if self._audit_log is not None else ()
            for waiting in (self._entries, self._lines):
                while len(waiting) > MAX_ENTRIES_WAITING:
                    waiting.popleft()
                    log.error("an audit entry is lost: %d of them wait to be written", MAX_ENTRIES_WAITING)
            if self._thread is None and not self._closing:
                self._thread = Thread(target=self._work, name="usage writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Write what waits, within `timeout_s`, and close the database."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.error("the usage of %d requests could not be written before the end", len(self._records))
        elif self._store is not None:
            self._store.close()

    # --- in the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        batch, pause_s = _Batch(), RETRY_S
        while True:
            if not (batch.records or batch.entries):
                batch = self._next()
            try:
                if self._store is not None and (batch.records or batch.entries):
                    self._store.write(batch.records, batch.entries)
            except Exception as error:
                self._report(error)
                if self._closing and pause_s > 1.0:
                    return
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)
                continue
            pause_s = RETRY_S
            self.num_done = batch.end
            if batch.records:
                self._on_written(batch.records)
            self._tidy(is_idle=not batch.records)
            batch = _Batch(end=batch.end)
            if self._closing and not (self._records or self._entries or len(self._sums)):
                self._finish()
                return

    def _next(self) -> _Batch:
        """Wait for what is to be written, and take all of it. Empty when the writer is being closed, or is idle."""
        with self._changed:
            if not self._changed.wait_for(self._has_work, IDLE_S):
                return _Batch(end=self.num_done)
            records, self._records = [*self._records, *self._sums.take()], deque()
            entries, self._entries = list(self._entries), deque()
            return _Batch(records, entries, self.num_put)

    def _has_work(self) -> bool:
        return bool(self._records or self._entries or self._closing)

    def _tidy(self, is_idle: bool) -> None:
        try:
            if self._lines and self._audit_log is not None:
                self._append_lines(self._audit_log)
            if self._store is not None:
                self._store.tidy(is_idle)
        except Exception as error:
            self._report(error)

    def _append_lines(self, path: Path) -> None:
        with self._changed:
            lines = list(self._lines)
        with path.open("ab", buffering=0) as file:
            file.write(b"".join(lines))
        with self._changed:
            for _ in lines:
                self._lines.popleft()

    def _finish(self) -> None:
        try:
            if self._store is not None:
                self._store.close()
        except Exception as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        if time.monotonic() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = time.monotonic()
            waiting = len(self._records) + len(self._sums)
            log.error("usage cannot be written (%s); %d records wait, requests go on", error, waiting)
