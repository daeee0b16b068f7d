"""Processes that call functions for `quire.isolation.isolated_calls`; one that replied is kept for the next call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from quire.errors import Overloaded
from quire.isolation.child_process import ChildProcess, bare_environment
from quire.isolation.isolated_process import function_name

MAX_KEPT = 2
"""Idle processes."""


class ProcessPool:
    """Threads may share it. at_idle_priority: of the processes, from their first instruction on."""

    def __init__(self, at_idle_priority: bool = True) -> None:
        self._at_idle_priority = at_idle_priority
        self._lock = threading.Lock()
        self._kept: list[ChildProcess] = []
        self._prepared: dict[str, None] = {}
        self._closed = False

    def prepare(self, function: Callable[..., Any]) -> None:
        """Start a process that imports the function's module, in the background."""
        with self._lock:
            known = function_name(function) in self._prepared
            self._prepared[function_name(function)] = None
        if not known:
            self.give_back(self.take())

    def take(self) -> ChildProcess:
        """A process that no other call uses. Raises Overloaded after `close`."""
        with self._lock:
            if self._closed:
                raise Overloaded("The server is closing.")
            if self._kept:
                return self._kept.pop()
            names = list(self._prepared)
        arguments = ["-m", "quire.isolation.isolated_process", *names]
        return ChildProcess(arguments, bare_environment(), receives_files=True, at_idle_priority=self._at_idle_priority)

    def give_back(self, process: ChildProcess) -> None:
        """Keep a process that has replied, unless there are enough."""
        with self._lock:
            if not self._closed and len(self._kept) < MAX_KEPT:
                self._kept.append(process)
                return
        process.end()

    def close(self) -> None:
        """End the processes that are kept; those in use are ended when they are given back."""
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, []
        for process in kept:
            process.end()
