"""Writes copied pages to the tiers in a thread. What the queue has no room for is not written."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from quire.engine.kv_tiers.blobs import StoredPage
from quire.engine.kv_tiers.daemon_threads import DaemonThreads
from quire.engine.kv_tiers.page_contents import CopiedPages
from quire.engine.kv_tiers.tier_stack import TierStack

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PageName:
    """The key of a page in the tiers, and until when it may be used; see `StoredPage`."""

    key: str
    expires: float | None = None


class PageWriter:
    """A queue of copied pages, and the thread that writes them. max_bytes: of the pages in the queue."""

    def __init__(self, stack: TierStack, page_bytes: int, max_bytes: int) -> None:
        self._stack, self._page_bytes, self._max_bytes = stack, page_bytes, max(max_bytes, page_bytes)
        self._threads = DaemonThreads("kv-writes", 1)
        self._lock = threading.Condition()
        self._num_queued = 0
        self.num_dropped = 0  # pages that were not written

    @property
    def room(self) -> int:
        """Pages that the queue has room for."""
        return self._max_bytes // self._page_bytes - self._num_queued

    def put(self, names: Sequence[PageName], pages: CopiedPages) -> None:
        """Queue pages, at most `room`."""
        with self._lock:
            self._num_queued += len(names)
        self._threads.submit(partial(self._write, names, pages))

    def _write(self, names: Sequence[PageName], pages: CopiedPages) -> None:
        num_left = len(names)
        try:
            lacking = self._stack.lacking([name.key for name in names])
            if any(lacking):
                for name, tiers, payload in zip(names, lacking, pages.payloads(), strict=True):
                    self._stack.put(name.key, StoredPage(payload, name.expires), tiers)
                    num_left -= 1
                    self._written(1)
        except Exception:  # a page that is not written is computed again
            log.exception("KV pages could not be written to the tiers")
        self._written(num_left)

    def _written(self, count: int) -> None:
        with self._lock:
            self._num_queued -= count
            self._lock.notify_all()

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until everything queued is written; False if that takes longer."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._num_queued, timeout_s)

    def close(self) -> None:
        self._threads.close()
