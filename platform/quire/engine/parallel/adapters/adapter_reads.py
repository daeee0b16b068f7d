"""Adapters that all ranks read at the same time, and sums over the ranks that they need for it.

The threads that read adapters run beside the steps, so these sums go through the leader's connections, in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from quire.engine.parallel.messages import AdapterRead, Addend, ReadAdapter, Total
from quire.errors import BadRequest

ADDEND_TIMEOUT_S = 60.0
"""How long a rank waits for the addends of others."""

REMEMBERED = 1000
"""Adapters whose reading has failed that a rank remembers."""


class ReadingThreads:
    """The sums that threads of one rank ask for while they read adapters. send: gets the rank's addends."""

    def __init__(self, send: Callable[[Addend], None]) -> None:
        self._send = send
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, int], Future[Tensor]] = {}
        self._failed: dict[int, str] = {}

    @contextmanager
    def reading(self, handle: int) -> Iterator[None]:
        """The current thread reads this adapter meanwhile."""
        self._of_thread.handle, self._of_thread.count = handle, 0
        yield

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over all ranks, in their order, of what those that read the same adapter ask for at the same point.

        Raises BadRequest if one of them cannot read the adapter.
        """
        handle, number = self._of_thread.handle, self._of_thread.count
        self._of_thread.count += 1
        found: Future[Tensor] = Future()
        with self._lock:
            self._waiting[handle, number] = found
            if handle in self._failed:
                found.set_exception(BadRequest(self._failed[handle], "lora_path"))
        try:
            self._send(Addend(handle, number, values))
            return found.result(ADDEND_TIMEOUT_S)
        finally:
            with self._lock:
                del self._waiting[handle, number]

    def take(self, total: Total) -> None:
        """Take a sum, or the reason why there is none."""
        if total.values is None:
            self.fail(total.handle, total.error or "")
            return
        with self._lock:
            found = self._waiting.get((total.handle, total.number))
            if found is not None and not found.done():
                found.set_result(total.values)

    def fail(self, handle: int, error: str) -> None:
        """A rank cannot read this adapter, so there are no more sums for it."""
        with self._lock:
            self._failed = {each: why for each, why in self._failed.items() if each > handle - REMEMBERED}
            self._failed[handle] = error
            for (of, _), found in self._waiting.items():
                if of == handle and not found.done():
                    found.set_exception(BadRequest(error, "lora_path"))


@dataclass(slots=True, eq=False)
class _Reading:
    """done: when all followers have read the adapter. left: those that have not."""

    done: Future[None]
    left: set[int]
    errors: list[str] = field(default_factory=list)


class AdapterReads:
    """The leader's side. size: number of ranks. width: ranks of a stage. send: sends a command to all followers.

    threads: those of the leader itself.
    """

    def __init__(self, size: int, width: int, send: Callable[[Any], None]) -> None:
        self._size, self._width, self._send = size, width, send
        self._lock = threading.Lock()
        self._reading: dict[int, _Reading] = {}
        self._addends: dict[tuple[int, int, int], dict[int, Tensor]] = {}
        self._failure: str | None = None
        self.threads = ReadingThreads(lambda addend: self.add(0, addend))

    def start(self, command: ReadAdapter) -> Future[None]:
        """Let all followers read an adapter; done when all have. The Future raises BadRequest if one cannot use it."""
        reading = _Reading(Future(), set(range(1, self._size)))
        with self._lock:
            self._reading[command.handle] = reading
            failure = self._failure
        self._send(command)
        if failure is not None:
            self.end(failure)
        return reading.done

    def fail(self, handle: int, error: str) -> None:
        """A rank cannot read this adapter: end the waits of the others for its addends."""
        with self._lock:
            self._addends = {key: found for key, found in self._addends.items() if key[0] != handle}
        self.threads.fail(handle, error)
        self._send(Total(handle, error=error))

    def add(self, rank: int, addend: Addend) -> None:
        """Take an addend of a rank; the last one of its stage makes the sum."""
        first = rank - rank % self._width
        key = addend.handle, addend.number, first
        with self._lock:
            found = self._addends.setdefault(key, {})
            found[rank] = addend.values
            if len(found) < self._width:
                return
            del self._addends[key]
        values = found[first]
        for other in range(first + 1, first + self._width):
            values = values + found[other]
        total = Total(addend.handle, addend.number, values, first_rank=first)
        if first == 0:
            self.threads.take(total)
        self._send(total)

    def read(self, rank: int, message: AdapterRead) -> None:
        """A follower has read an adapter, or cannot use it."""
        if message.error is not None:
            self.fail(message.handle, message.error)
        with self._lock:
            reading = self._reading.get(message.handle)
            if reading is None:
                return
            reading.left.discard(rank)
            reading.errors += [message.error] if message.error is not None else []
            if reading.left:
                return
            del self._reading[message.handle]
        if reading.errors:
            reading.done.set_exception(BadRequest(reading.errors[0], "lora_path"))
        else:
            reading.done.set_result(None)

    def end(self, failure: str) -> None:
        """The group has failed: end what waits for other ranks, now and later."""
        error = f"The adapter could not be read on all ranks: {failure}"
        with self._lock:
            self._failure = failure
            waiting, self._reading = self._reading, {}
        for handle, reading in waiting.items():
            self.threads.fail(handle, error)
            if not reading.done.done():
                reading.done.set_exception(BadRequest(error, "lora_path"))
