"""The adapter runtimes of the leader: what they do with adapters, all followers do too."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from quire.engine.parallel.messages import AcquireSlot, ReadAdapter, ReleaseAdapter, ReleaseSlot
from quire.errors import BadRequest
from quire.records import AdapterMetadata


class Followers(Protocol):
    """What a mirrored runtime needs of the followers."""

    def send(self, command: Any) -> None:
        """Send a command to all."""
        ...

    def read_adapter(self, command: ReadAdapter) -> Future[None]:
        """Let all read an adapter; done when all have. The Future raises BadRequest if one cannot use it."""
        ...


@dataclass(frozen=True, eq=False)
class MirroredAdapter:
    """An adapter that all ranks have read. loaded: what the leader's runtime returned."""

    handle: int
    loaded: Any


class MirroredRuntime:
    """A `quire.records.AdapterRuntimeImpl` around the leader's own."""

    def __init__(self, built: Any, runtime_index: int, followers: Followers, handles: count[int]) -> None:
        self._built, self._index, self._followers, self._handles = built, runtime_index, followers, handles
        self._lock = Lock()  # so that followers free and take slots in the order in which it happens here

    def __getattr__(self, name: str) -> Any:
        """What is about steps, not about adapters: the leader's own."""
        return getattr(self._built, name)

    def load(self, name: str, path: Path) -> MirroredAdapter:
        """Read an adapter on all ranks. Raises BadRequest."""
        handle = next(self._handles)
        others = self._followers.read_adapter(ReadAdapter(handle, self._index, name, path))
        try:
            adapter = MirroredAdapter(handle, self._built.load(name, path))
        except BaseException:
            others.add_done_callback(lambda _: self._followers.send(ReleaseAdapter(handle, self._index)))
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
                self._followers.send(AcquireSlot(adapter.handle, self._index, slot))
            return slot

    def release_slot(self, adapter: MirroredAdapter) -> None:
        with self._lock:
            self._built.release_slot(adapter.loaded)
            self._followers.send(ReleaseSlot(adapter.handle, self._index))

    def release(self, adapter: MirroredAdapter) -> None:
        with self._lock:
            self._built.release(adapter.loaded)
            self._followers.send(ReleaseAdapter(adapter.handle, self._index))

    def store_virtual(self, adapter: MirroredAdapter, kv: Any, slot_mapping: Any) -> None:
        self._built.store_virtual(adapter.loaded, kv, slot_mapping)
