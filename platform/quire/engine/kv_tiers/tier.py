"""One tier: a store, called in threads of its own with a time limit, and counted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, TimeoutError as FutureTimeout, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from quire.engine.kv_tiers.blobs import BadBlob, StoredPage, decode, encode
from quire.engine.kv_tiers.daemon_threads import DaemonThreads
from quire.errors import QuireError
from quire.records import KvStoreImpl, KvStoreUse
from quire.types import KvTierStats

log = logging.getLogger(__name__)

NUM_THREADS = 4
"""For one store; so many calls may wait for it at once."""

MAX_FAULTS = 3
"""Calls in a row that fail or take too long, after which a store is not called for `REST_S`."""

REST_S = 30.0

Call = Callable[..., Any]


class StoreUnavailable(Exception):
    """A store failed, took too long, or rests after it did so several times."""


@dataclass(slots=True)
class _Counts:
    hits: int = 0
    misses: int = 0
    corrupted: int = 0
    errors: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class Tier:
    """Keeps pages in a store, by key. No method raises what the store raises: pages are missing then.

    call: calls a function of the store, and raises QuireError if that fails. timeout_s: of one call; None = it is
    called in the caller's thread.
    """

    def __init__(
        self,
        name: str,
        store: KvStoreImpl,
        call: Call = lambda function, *args: function(*args),
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name, self._store, self._call_store, self._timeout_s, self._clock = name, store, call, timeout_s, clock
        self._threads = DaemonThreads(f"kv-{name}", NUM_THREADS)
        self._counts, self._lock = _Counts(), Lock()
        self._faults, self._rests_until = 0, 0.0
        self._use = KvStoreUse()

    @property
    def store(self) -> KvStoreImpl:
        return self._store

    def contains(self, keys: Sequence[str]) -> list[bool]:
        """Whether it has a page, for each key."""
        try:
            found = [bool(each) for each in self._call(self._store.contains, keys)]
        except StoreUnavailable:
            return [False] * len(keys)
        return found if len(found) == len(keys) else [False] * len(keys)

    def get(self, keys: Sequence[str], deadline: float | None = None) -> list[StoredPage]:
        """The pages of the first keys up to one that is missing, or that is not read at `deadline` (monotonic)."""
        found: list[StoredPage] = []
        waiting: list[Future[Any]] = []
        try:
            for i, key in enumerate(keys):
                while len(waiting) < min(NUM_THREADS, len(keys) - i):
                    waiting.append(self._begin(partial(self._read, keys[i + len(waiting)])))
                page = self._finish(waiting.pop(0), deadline)
                if isinstance(page, BadBlob):
                    self._remove(key, page)
                if not isinstance(page, StoredPage):
                    break
                found.append(page)
        except StoreUnavailable:
            pass
        finally:
            for future in waiting:
                future.cancel()
        with self._lock:
            self._counts.hits += len(found)
            self._counts.misses += len(found) < len(keys)
            self._counts.read_bytes += sum(len(page.payload) for page in found)
        return found

    def _read(self, key: str) -> StoredPage | BadBlob | None:
        """The page, what is wrong with it, or None if it is missing."""
        blob = self._call_store(self._store.get, key)
        try:
            return None if blob is None else decode(key, blob, self._clock())
        except BadBlob as error:
            return error
        except Exception:  # the store returned something that has no bytes
            return BadBlob("it is not bytes")

    def _remove(self, key: str, error: BadBlob) -> None:
        log.debug("the page %s of the KV tier %s is missing: %s", key, self.name, error)
        with self._lock:
            self._counts.corrupted += 1
        with suppress(StoreUnavailable):
            self._call(self._store.remove, key)

    def put(self, key: str, page: StoredPage) -> None:
        """Keep a page until it expires."""
        blob, ttl_s = encode(key, page), None if page.expires is None else page.expires - self._clock()
        try:
            self._call(self._store.put, key, blob, ttl_s)
        except StoreUnavailable:
            return
        with self._lock:
            self._counts.written_bytes += len(blob)

    def _call(self, function: Call, *args: Any) -> Any:
        """What the store returns. Raises StoreUnavailable."""
        return self._finish(self._begin(partial(self._call_store, function, *args)), None)

    def _begin(self, call: Callable[[], Any]) -> Future[Any]:
        """Call it in a thread if calls have a time limit. Raises StoreUnavailable."""
        if self._rests_until > time.monotonic():
            raise StoreUnavailable
        if self._timeout_s is not None:
            return self._threads.submit(call)
        future: Future[Any] = Future()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return future

    def _finish(self, future: Future[Any], deadline: float | None) -> Any:
        """The result. deadline: monotonic; to miss it is no fault of the store. Raises StoreUnavailable."""
        limit = self._timeout_s
        if deadline is not None:
            limit = min(deadline - time.monotonic(), limit or 1e9)
        try:
            result = future.result(None if limit is None else max(0.0, limit))
        except (FutureTimeout, CancelledError) as error:
            future.cancel()
            if deadline is None or time.monotonic() < deadline:
                self._fault(f"a call takes longer than {self._timeout_s:g} s")
            raise StoreUnavailable from error
        except Exception as error:
            self._fault(error.message if isinstance(error, QuireError) else str(error))
            raise StoreUnavailable from error
        self._faults = 0
        return result

    def _fault(self, reason: str) -> None:
        with self._lock:
            self._counts.errors += 1
            self._faults += 1
            rests = self._faults >= MAX_FAULTS
            if rests:
                self._faults, self._rests_until = 0, time.monotonic() + REST_S
        log.warning("KV tier %s: %s%s", self.name, reason, f"; it is not used for {REST_S:g} s" if rests else "")

    def stats(self) -> KvTierStats:
        """Counts since start, and what the store held lately; does not wait for the store."""
        if self._timeout_s is None:
            self._use = self._store.use()
        else:
            self._threads.submit(self._read_use)
        counts, use = self._counts, self._use
        return KvTierStats(
            name=self.name,
            num_bytes=use.num_bytes,
            num_pages=use.num_blobs,
            num_hits_total=counts.hits,
            num_misses_total=counts.misses,
            num_corrupted_total=counts.corrupted,
            num_errors_total=counts.errors,
            num_evictions_total=use.num_evictions,
            num_read_bytes_total=counts.read_bytes,
            num_written_bytes_total=counts.written_bytes,
        )

    def _read_use(self) -> None:
        with suppress(QuireError):
            self._use = self._call_store(self._store.use)

    def close(self) -> None:
        """Close the store, waiting for it a limited time."""
        if self._timeout_s is None:
            self._store.close()
            return
        wait([self._threads.submit(partial(self._call_store, self._store.close))], self._timeout_s)
        self._threads.close()
