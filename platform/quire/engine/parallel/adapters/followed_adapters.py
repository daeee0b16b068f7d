"""The adapters of a follower: read when the leader says so, in the slots that they have there."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.engine.adapters.attached_runtimes import AttachedRuntimes
from quire.engine.adapters.mapping import AdapterMapping
from quire.engine.parallel.adapters.adapter_reads import ReadingThreads
from quire.engine.parallel.messages import AcquireSlot, PlacedAdapter, ReadAdapter, ReleaseAdapter, ReleaseSlot
from quire.errors import QuireError
from quire.types import AdapterRef

SlotCommand = AcquireSlot | ReleaseSlot | ReleaseAdapter


@dataclass(slots=True, eq=False)
class _Revision:
    """What `AdapterMapping` reads of an adapter."""

    runtime: Any
    slot: int
    metadata: Any
    loaded: Any
    holding_requests: set[str] = field(default_factory=lambda: {"the leader's"})


class FollowedAdapters:
    """The adapters by the leader's handles. threads: what those that read need of other ranks. mapping: the adapters
    of the runner's sequences.
    """

    def __init__(self, runtimes: AttachedRuntimes, threads: ReadingThreads) -> None:
        self._runtimes, self._threads = runtimes, threads
        self._loaded: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._placed: dict[AdapterRef, Any] = {}
        self.mapping = AdapterMapping(runtimes, self._placed)

    def read(self, command: ReadAdapter) -> str | None:
        """Read an adapter; returns why it cannot be used, None if it can. Any thread may call it."""
        runtime = self._runtimes.at(command.runtime)
        try:
            with self._threads.reading(command.handle):
                found = runtime.call(runtime.built.load, command.name, command.path)
        except QuireError as error:
            return error.message
        with self._lock:
            self._loaded[command.handle] = found
        return None

    def do(self, command: SlotCommand) -> None:
        """Acquire or release a slot, or free an adapter. Raises RuntimeError if slots differ from the leader's."""
        built = self._runtimes.at(command.runtime).built
        with self._lock:
            adapter = self._loaded.get(command.handle)
            if isinstance(command, ReleaseAdapter):
                self._loaded.pop(command.handle, None)
        if adapter is None:
            return  # it could not be read here
        if isinstance(command, AcquireSlot):
            slot = built.acquire_slot(adapter)
            if slot != command.slot:
                raise RuntimeError(f"an adapter has slot {slot} here and {command.slot} on the first rank")
        elif isinstance(command, ReleaseSlot):
            built.release_slot(adapter)
        else:
            built.release(adapter)

    def place(self, adapters: Mapping[AdapterRef, PlacedAdapter]) -> None:
        """Remember the adapters that new sequences of a plan use."""
        for ref, placed in adapters.items():
            with self._lock:
                loaded = self._loaded[placed.handle]
            runtime = self._runtimes.at(placed.runtime)
            self._placed[ref] = _Revision(runtime, placed.slot, placed.metadata, loaded)

    def forget(self, ended: Sequence[int]) -> None:
        """Drop what no sequence uses any more."""
        if ended and not self.mapping.slots:
            self._placed.clear()
