"""The adapter runtimes of the leader: what they do with adapters, all followers do too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from quire.engine.parallel.adapters.adapter_reads import AdapterReads
from quire.engine.parallel.messages import AcquireSlot, ReadAdapter, ReleaseAdapter, ReleaseSlot
from quire.errors import BadRequest, QuireError
from quire.records import AdapterMetadata


@dataclass(frozen=True, eq=False)
class MirroredAdapter:
    """An adapter that all ranks have read. loaded: what the leader's runtime returned."""

    handle: int
    loaded: Any


class MirroredRuntime:
    """A `quire.records.AdapterRuntimeImpl` around the leader's own."""

    def __init__(
        self, built: Any, runtime_index: int, send: Callable[[Any], None], reads: AdapterReads, handles: count[int]
    ) -> None:
        """send: sends a command to all followers."""
        self._built, self._index, self._send, self._reads, self._handles = built, runtime_index, send, reads, handles
        self._lock = Lock()  # so that followers free and take slots in the order in which it happens here

    def __getattr__(self, name: str) -> Any:
        """What is about steps, not about adapters: the leader's own."""
        return getattr(self._built, name)

    def load(self, name: str, path: Path) -> MirroredAdapter:
        """Read an adapter on all ranks. Raises BadRequest."""
        handle = next(self._handles)
        others = self._reads.start(ReadAdapter(handle, self._index, name, path))
        try:
            with self._reads.threads.reading(handle):
                adapter = MirroredAdapter(handle, self._built.load(name, path))
        except BaseException as error:
            self._reads.fail(handle, error.message if isinstance(error, QuireError) else repr(error))
            others.add_done_callback(lambda _: self._send(ReleaseAdapter(handle, self._index)))
            raise
        try:
            others.result()
        except BadRequest:
            self.release(adapter)
            raise
        return adapter

    def describe(self, adapter: MirroredAdapter) -> AdapterMetadata:
        found: AdapterMetadata = self._built.describe(adapter.loaded)
        return found

    def acquire_slot(self, adapter: MirroredAdapter) -> int | None:
        with self._lock:
            slot: int | None = self._built.acquire_slot(adapter.loaded)
            if slot is not None:
                self._send(AcquireSlot(adapter.handle, self._index, slot))
            return slot

    def release_slot(self, adapter: MirroredAdapter) -> None:
        with self._lock:
            self._built.release_slot(adapter.loaded)
            self._send(ReleaseSlot(adapter.handle, self._index))

    def release(self, adapter: MirroredAdapter) -> None:
        with self._lock:
            self._built.release(adapter.loaded)
            self._send(ReleaseAdapter(adapter.handle, self._index))

    def store_virtual(self, adapter: MirroredAdapter, kv: Any, slot_mapping: Any) -> None:
        self._built.store_virtual(adapter.loaded, kv, slot_mapping)
