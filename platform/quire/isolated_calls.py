"""IsolatedCalls: calls functions in processes that are ended when these take too long, so that files do no harm here.

Threads may share it; each call has a process to itself. One that answered is kept for the next call. See
`quire.isolation.CallsApart` for what may be called.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.child_process import ChildProcess, bare_environment
from quire.errors import BadRequest, Overloaded, QuireError, error_told
from quire.isolated_process import Answer, Question, name_of, packed
from quire.isolation import Shared, SharedBytes

MEMORY_BYTES = 4 << 30
"""Address space that a call may take beside what the process has: torch's libraries are the most of it."""

MAX_KEPT = 2


@dataclass(frozen=True)
class Purpose:
    """What calls are for, as errors say it. what: begins a sentence. setting: sets their time. param: of a request.

    kind: of errors. idle: whether they run only while nothing else wants a core.
    """

    what: str
    setting: str
    param: str | None
    kind: type[QuireError] = BadRequest
    idle: bool = True


ADAPTER_FILES = Purpose("Reading the files", "--lora-load-timeout-s", "lora_path")


class IsolatedCalls:
    """timeout_s: the longest that a call may take, the start of its process included."""

    def __init__(self, timeout_s: float, purpose: Purpose = ADAPTER_FILES) -> None:
        self._timeout_s, self._purpose = timeout_s, purpose
        self._lock = threading.Lock()
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._prepared: dict[str, None] = {}
        self._closed = False

    def prepare(self, function: Callable[..., Any]) -> None:
        """Start a process that has imported the function's module, in the background."""
        with self._lock:
            known = name_of(function) in self._prepared
            self._prepared[name_of(function)] = None
        if not known:
            self._give_back(self._take())

    def __call__(
        self, function: Callable[..., Any], *args: Any, memory_bytes: int = 0, timeout_s: float | None = None
    ) -> Any:
        """See `quire.isolation.CallsApart`. timeout_s: of this call, if it is less than usual."""
        seconds = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        question = Question(name_of(function), list(args), MEMORY_BYTES + memory_bytes, seconds)
        process, answered = self._take(), False
        try:
            body, descriptor = process.ask(packed(question), seconds)
            answered = True
        except TimeoutError:
            raise self._failed(f"took longer than {seconds:.3g} s and was stopped ({self._purpose.setting})") from None
        except (EOFError, OSError):
            self._check_open()
            raise self._failed("ended the process that did it, perhaps for want of memory") from None
        finally:
            if answered:
                self._give_back(process)
            else:
                self._end(process)
        return self._value(Answer(**json.loads(body)), None if descriptor is None else SharedBytes(descriptor))

    def _failed(self, how: str) -> QuireError:
        return self._purpose.kind(f"{self._purpose.what} {how}.", self._purpose.param)

    def _value(self, answer: Answer, memory: SharedBytes | None) -> Any:
        if answer.error is not None:
            raise error_told(tuple(answer.error))
        if answer.excess is not None:
            raise self._failed(answer.excess)
        if answer.fault is not None:
            raise QuireError(f"{self._purpose.what} failed: {answer.fault}")
        return answer.value if memory is None else Shared(answer.value, memory)

    def _check_open(self) -> None:
        if self._closed:
            raise Overloaded("The server is closing.")

    def _take(self) -> ChildProcess:
        with self._lock:
            self._check_open()
            if self._idle:
                return self._idle.pop()
            names = list(self._prepared)
        idle = ["--idle"] if self._purpose.idle else []
        process = ChildProcess(["-m", "quire.isolated_process", *idle, *names], bare_environment())
        with self._lock:
            self._all.add(process)
            closed = self._closed
        if closed:  # while it was started
            self._end(process)
            self._check_open()
        return process

    def _give_back(self, process: ChildProcess) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MAX_KEPT:
                self._idle.append(process)
                return
        self._end(process)

    def _end(self, process: ChildProcess) -> None:
        with self._lock:
            self._all.discard(process)
        process.end()

    def close(self) -> None:
        """End the processes; calls that are under way fail."""
        with self._lock:
            self._closed = True
            processes = list(self._all)
            self._idle.clear()
        for process in processes:
            self._end(process)
