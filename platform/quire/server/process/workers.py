"""Thread pools for work that would block the event loop, with a limit on how much may wait.

Each kind of work has its own pool, so that tokenizing long texts does not delay the parsing of request bodies. Work of
a client that has disconnected is not started, and running work can ask whether it is still needed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from quire.errors import Overloaded
from quire.text.tokenizer.long_texts import ShouldContinue

T = TypeVar("T")

MAX_WAITING = 256


class Workers:
    """A thread pool for one kind of work; `what` names the work in errors."""

    def __init__(self, what: str, num_threads: int, max_waiting: int = MAX_WAITING) -> None:
        self._what = what
        self._num_threads = num_threads
        self._threads: ThreadPoolExecutor | None = None
        self._max_pending = num_threads + max_waiting
        self._count = 0

    async def run(self, work: Callable[[ShouldContinue], T]) -> T:
        """Run `work` in a thread; `work` gets a function that says whether its result is still needed.

        Raises `Overloaded` at once if too much work is waiting. If this is canceled, waiting work is not started.
        """
        if self._count >= self._max_pending:
            raise Overloaded(f"Too many requests wait for {self._what}; try again later.")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix=self._what.replace(" ", "-"))
        canceled = threading.Event()
        context = copy_context()  # log records of the work belong to the request
        future = self._threads.submit(lambda: context.run(work, lambda: not canceled.is_set()))
        self._count += 1
        future.add_done_callback(self._on_ended(asyncio.get_running_loop()))
        try:
            return await asyncio.wrap_future(future)
        finally:
            canceled.set()

    def _on_ended(self, loop: asyncio.AbstractEventLoop) -> Callable[[object], None]:
        def ended(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._forget)

        return ended

    def _forget(self) -> None:
        self._count -= 1

    def close(self) -> None:
        """Cancel waiting work. Later work starts new threads, since an app's lifespan can start again."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None


def _for_texts() -> Workers:
    return Workers("tokenizing", max(1, min(4, (os.cpu_count() or 2) // 2)))


@dataclass(frozen=True)
class WorkerPools:
    """The thread pools of a server: for parsing bodies, tokenizing texts and encoding responses.

    Parsing and encoding hold the GIL, so they have one thread each: more would only alternate.
    """

    bodies: Workers = field(default_factory=lambda: Workers("reading bodies", 1))
    texts: Workers = field(default_factory=_for_texts)
    answers: Workers = field(default_factory=lambda: Workers("writing answers", 1))

    def close(self) -> None:
        for workers in (self.bodies, self.texts, self.answers):
            workers.close()
