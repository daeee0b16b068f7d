"""Calls functions in processes that are killed when they take too long, so that untrusted files do no harm here.

Threads may share it. Each call has a process to itself; one that replied is kept for the next call.
`quire.isolation.plugin_calls.SubprocessCalls` says what may be called.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.errors import BadRequest, Overloaded, QuireError, from_wire
from quire.isolation.child_process import ChildProcess
from quire.isolation.isolated_process import CallReply, CallRequest, encode, function_name
from quire.isolation.plugin_calls import Shared, SharedBytes
from quire.isolation.process_pool import ProcessPool

MEMORY_BYTES = 4 << 30
"""Address space that a call may take in addition to what its process has; most of it is for torch's libraries."""


@dataclass(frozen=True)
class Purpose:
    """What calls are for; error messages are built from it.

    what: the first words of a sentence. setting: the flag that sets the time limit. param: the field of the request.
    kind: the class of errors. idle: the processes run at idle priority.
    """

    what: str
    setting: str
    param: str | None
    kind: type[QuireError] = BadRequest
    idle: bool = True


ADAPTER_FILES = Purpose("Reading the files", "--lora-load-timeout-s", "lora_path")


class IsolatedCalls:
    """Calls for one purpose. timeout_s: limit of a call, including the start of its process.

    pool: processes that others use too; None = its own.
    """

    def __init__(self, timeout_s: float, purpose: Purpose = ADAPTER_FILES, pool: ProcessPool | None = None) -> None:
        self._timeout_s, self._purpose = timeout_s, purpose
        self._pool, self._owns_pool = pool or ProcessPool(purpose.idle), pool is None
        self._lock = threading.Lock()
        self._running: set[ChildProcess] = set()
        self._closed = False

    def prepare(self, function: Callable[..., Any]) -> None:
        """Start a process that imports the function's module, in the background."""
        self._pool.prepare(function)

    def __call__(
        self, function: Callable[..., Any], *args: Any, memory_bytes: int = 0, timeout_s: float | None = None
    ) -> Any:
        """`function(*args)`. timeout_s: limit of this call, if it is shorter than the usual one."""
        seconds = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        request = CallRequest(function_name(function), list(args), MEMORY_BYTES + memory_bytes, seconds)
        process, replied = self._begin(), False
        try:
            body, descriptor = process.ask(encode(request), seconds)
            replied = True
        except TimeoutError:
            raise self._failed(f"took longer than {seconds:.3g} s and was stopped ({self._purpose.setting})") from None
        except (EOFError, OSError):
            self._check_open()
            raise self._failed("ended the process that did it, perhaps for lack of memory") from None
        finally:
            self._end(process, replied)
        return self._result(CallReply(**json.loads(body)), None if descriptor is None else SharedBytes(descriptor))

    def _begin(self) -> ChildProcess:
        process = self._pool.take()
        with self._lock:
            self._running.add(process)
            closed = self._closed
        if closed:  # while the process was started
            self._end(process, replied=False)
            self._check_open()
        return process

    def _end(self, process: ChildProcess, replied: bool) -> None:
        with self._lock:
            self._running.discard(process)
            is_alive = replied and not self._closed  # `close` may have killed it
        if is_alive:
            self._pool.give_back(process)
        else:
            process.end()

    def _failed(self, how: str) -> QuireError:
        return self._purpose.kind(f"{self._purpose.what} {how}.", self._purpose.param)

    def _result(self, reply: CallReply, memory: SharedBytes | None) -> Any:
        if reply.error is not None:
            raise from_wire(tuple(reply.error))
        if reply.excess is not None:
            raise self._failed(reply.excess)
        if reply.failure is not None:
            raise QuireError(f"{self._purpose.what} failed: {reply.failure}")
        return reply.value if memory is None else Shared(reply.value, memory)

    def _check_open(self) -> None:
        if self._closed:
            raise Overloaded("The server is closing.")

    def close(self) -> None:
        """Kill the processes of calls in progress, which fail."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            process.end()
        if self._owns_pool:
            self._pool.close()
