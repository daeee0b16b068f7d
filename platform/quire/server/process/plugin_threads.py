"""Daemon threads for plugin code, which may never return: limited in number, and never waited for at exit.

The event loop's default executor stays free for the server's own work.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("quire.server")


class QueueFull(Exception):
    """The queue has reached its limit."""


class PluginThreads:
    """Runs at most `threads` calls at once, and queues at most `waiting` more. Threads start when needed."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._name, self._threads, self._waiting = name, threads, waiting
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._arrived = Condition()
        self._started = self._idle = 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """A future for the result of `work`. Canceling it removes a queued call. Raises QueueFull."""
        future: Future[T] = Future()
        with self._arrived:
            while self._queue and self._queue[0][0].cancelled():
                self._queue.popleft()
            if self._idle <= len(self._queue) and self._started < self._threads:
                self._started += 1
                Thread(target=self._work, name=self._name, daemon=True).start()
            elif sum(not queued.cancelled() for queued, _ in self._queue) >= self._waiting:
                raise QueueFull
            self._queue.append((future, work))
            self._arrived.notify()
        return future

    def _work(self) -> None:
        while True:
            with self._arrived:
                self._idle += 1
                while not self._queue:
                    self._arrived.wait()
                self._idle -= 1
                future, work = self._queue.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)


class PluginNotifier:
    """Passes values to one plugin, one after another, in a thread of its own.

    At most `waiting` values are queued while the plugin is busy; further ones are dropped and counted in `dropped`.
    """

    def __init__(self, plugin: str, notify: Callable[[Any], object], waiting: int) -> None:
        self.plugin, self.dropped = plugin, 0
        self._notify, self._waiting = notify, waiting
        self._values: deque[Any] = deque()
        self._changed = Condition()
        self._busy = self._started = False

    def put(self, value: Any) -> None:
        """Queue a value for the plugin."""
        with self._changed:
            if len(self._values) >= self._waiting:
                if self.dropped % self._waiting == 0:
                    log.warning(
                        "plugin %r is too slow: %d values are waiting for it, and new ones are dropped (%d so far)",
                        *(self.plugin, self._waiting, self.dropped + 1),
                    )
                self.dropped += 1
                return
            self._values.append(value)
            self._changed.notify_all()
            if not self._started:
                self._started = True
                Thread(target=self._work, name=f"notifier of {self.plugin}", daemon=True).start()

    def drain(self, timeout_s: float) -> bool:
        """Wait until the plugin has processed all values; False if that takes longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._values and not self._busy, timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._values:
                    self._changed.wait()
                value, self._busy = self._values.popleft(), True
            try:
                self._notify(value)
            except Exception:
                log.exception("plugin %r failed on a notification; later ones are still sent", self.plugin)
