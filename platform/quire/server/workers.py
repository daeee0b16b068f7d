"""Threads for work that is too long for the event loop, with a bound on how much may wait for them.

One kind of work has its own: long texts don't keep others from having their bodies read. A piece of work whose
client is gone is never begun; one that has begun can ask whether it is still wanted.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from quire.errors import Overloaded
from quire.text.long_texts import Wanted

T = TypeVar("T")

MAX_WAITING = 256


class Workers:
    """A few threads for one kind of work. what: names it in errors."""

    def __init__(self, what: str, num_threads: int, max_waiting: int = MAX_WAITING) -> None:
        self._what = what
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=what.replace(" ", "-"))
        self._most = num_threads + max_waiting
        self._count = 0

    async def run(self, work: Callable[[Wanted], T]) -> T:
        """What `work` gives; it gets a function that says whether it is still wanted.

        Raises `Overloaded` at once when too much waits. If this is cancelled, work that waits is never begun.
        """
        if self._count >= self._most:
            raise Overloaded(f"Too many requests wait for {self._what}; try again later.")
        unwanted = threading.Event()
        future = self._threads.submit(lambda: work(lambda: not unwanted.is_set()))
        self._count += 1
        future.add_done_callback(self._ended(asyncio.get_running_loop()))
        try:
            return await asyncio.wrap_future(future)
        finally:
            unwanted.set()

    def _ended(self, loop: asyncio.AbstractEventLoop) -> Callable[[object], None]:
        def ended(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._forget)

        return ended

    def _forget(self) -> None:
        self._count -= 1

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _for_texts() -> Workers:
    return Workers("tokenizing", max(1, min(4, (os.cpu_count() or 2) // 2)))


@dataclass(frozen=True)
class Pools:
    """The workers of a server: bodies are read, texts tokenized, answers written.

    Reading and writing hold the interpreter's lock while they run, so one thread each: more would only take turns.
    """

    bodies: Workers = field(default_factory=lambda: Workers("reading bodies", 1))
    texts: Workers = field(default_factory=_for_texts)
    answers: Workers = field(default_factory=lambda: Workers("writing answers", 1))

    def close(self) -> None:
        """Begin nothing more."""
        for workers in (self.bodies, self.texts, self.answers):
            workers.close()
