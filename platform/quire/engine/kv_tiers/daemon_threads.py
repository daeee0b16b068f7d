"""Threads that call functions one after another and do not keep the process from ending, however long a call hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Item = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads:
    """`count` threads, which start with the first call."""

    def __init__(self, name: str, count: int, prepare: Callable[[], None] = lambda: None) -> None:
        """prepare: called first in each thread."""
        self._name, self._count, self._prepare = name, count, prepare
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._lock, self._started = threading.Lock(), False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Call it in a thread; a future that is cancelled before is not called."""
        with self._lock:
            if not self._started:
                self._started = True
                for i in range(self._count):
                    threading.Thread(target=self._run, name=f"{self._name}-{i}", daemon=True).start()
        future: Future[T] = Future()
        self._queue.put((future, call))
        return future

    def close(self) -> None:
        """End the threads after the calls that are queued; returns at once."""
        for _ in range(self._count if self._started else 0):
            self._queue.put(None)

    def _run(self) -> None:
        self._prepare()
        while (item := self._queue.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del item, future, call
