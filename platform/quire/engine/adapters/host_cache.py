"""Decides which adapters are in host memory. The others are on disk and are read again when a request needs them.

The least recently used adapter is evicted when another needs its place. An adapter stays if it is pinned, is being
read, holds a slot for a request, or is needed by a request at the front of the queue.
Every call holds the lock of `quire.engine.adapters.engine_adapters`.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from concurrent.futures import Future
from typing import Any

from quire.engine.adapters.revision import AdapterRevision, AdapterSet
from quire.errors import BadRequest


class HostAdapterCache:
    """Places in host memory for `capacity` adapters.

    read: starts reading an adapter in the background; `put` is called when it was read. free: releases what a runtime
    loaded, perhaps later. protected: adapters that must not be evicted because they are running or next in the queue;
    `quire.engine.adapters.admission` sets it. version: number of changes to what is in memory.
    """

    def __init__(
        self,
        capacity: int,
        max_per_request: int,
        read: Callable[[AdapterRevision], None],
        free: Callable[[AdapterRevision, Any], Future[None]],
    ) -> None:
        """max_per_request: adapters that one request may need; as many places are never pinned."""
        self._capacity, self._max_pinned = capacity, capacity - max_per_request
        self._read, self._free = read, free
        self._entries: dict[AdapterRevision, None] = {}  # in memory or being read, the least recently used first
        self._pinned: set[AdapterRevision] = set()  # a subset of the entries
        self.protected: Set[AdapterRevision] = frozenset()
        self.num_evictions = self.version = 0

    @property
    def num_unpinned(self) -> int:
        """Places for adapters that are not pinned: at least as many as one request may need."""
        return self._capacity - len(self._pinned)

    def check_pin(self, num_pinned: int) -> None:
        """Raise BadRequest if no adapter may be pinned in addition to `num_pinned` others."""
        if num_pinned >= self._max_pinned:
            raise BadRequest(
                f"No more than {max(0, self._max_pinned)} adapters can be pinned: host memory has places for "
                f"{self._capacity} (--max-cpu-loras), and some must be left for other adapters.",
                "pinned",
            )

    def unpin(self, adapter: AdapterRevision) -> None:
        adapter.pinned = False
        self._pinned.discard(adapter)
        self.version += 1

    def put(self, adapter: AdapterRevision) -> None:
        """Keep an adapter that was read, or free it at once if protected adapters leave no place for it."""
        self.version += 1
        if adapter not in self._entries and not self._make_place():
            loaded, adapter.loaded = adapter.loaded, None
            self._free(adapter, loaded)
            return
        self._entries[adapter] = self._entries.pop(adapter, None)
        if adapter.pinned:
            self._pinned.add(adapter)

    def remove(self, adapter: AdapterRevision) -> Future[None] | None:
        """Free an adapter's memory and its place. The result is done when the memory is free; None if it had none."""
        self.version += 1
        self._entries.pop(adapter, None)
        self._pinned.discard(adapter)
        loaded, adapter.loaded, adapter.on_device = adapter.loaded, None, False
        return None if loaded is None else self._free(adapter, loaded)

    def prefetch(self, adapter_set: AdapterSet) -> bool:
        """Whether these protected adapters are all in memory. Starts reading the others as soon as there is a place."""
        all_loaded = True
        for adapter in adapter_set:
            if adapter.loaded is not None:
                self._entries[adapter] = self._entries.pop(adapter, None)
                continue
            all_loaded = False
            if not adapter.is_reading and self._make_place():
                self._entries[adapter] = None
                self._read(adapter)
        return all_loaded

    def _make_place(self) -> bool:
        """Whether there is a place for one more adapter; evicts the least recently used one if necessary."""
        if len(self._entries) < self._capacity:
            return True
        for adapter in self._entries:
            in_use = adapter.is_reading or adapter.holding_requests or adapter.pinned
            if not (in_use or adapter in self.protected):
                self.num_evictions += 1
                self.remove(adapter)
                return True
        return False
