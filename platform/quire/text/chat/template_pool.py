"""A pool of sandbox processes that render chat templates, with limits on the time, memory and output of each job.

Calls block; an event loop makes them in a thread. `quire.text.chat.templates` builds what is rendered.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.errors import BadRequest, Overloaded, QuireError
from quire.isolation.child_process import ChildProcess
from quire.text.chat import template_worker as sandbox

START_TIMEOUT_S = 60.0
KEPT_VARIABLES = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL", "SYSTEMROOT")
"""Environment variables passed to a sandbox process, so that it finds its interpreter. API keys are not passed."""


class TemplatePool:
    """Renders templates in sandbox processes. Thread-safe; processes start on demand and end with the pool.

    timeout_s: limit for one template. max_chars: limit of its output. memory_bytes: address space of a process.
    max_processes: limit of concurrent jobs; further jobs wait for up to timeout_s.
    """

    def __init__(
        self,
        timeout_s: float = 5.0,
        max_chars: int = 8 << 20,
        memory_bytes: int = 1 << 30,
        max_processes: int = 4,
    ) -> None:
        self._timeout_s = timeout_s
        self._max_chars = max_chars
        self._memory_bytes = memory_bytes
        self._idle: list[ChildProcess] = []
        self._all: set[ChildProcess] = set()
        self._capacity = threading.BoundedSemaphore(max_processes)
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _end_all, self._all)

    def check(self, template: str) -> None:
        """Compile the template without rendering it; raises `BadRequest` if it does not compile."""
        self._ask({"template": template})

    def render(self, template: str, context: Mapping[str, Any], markers: Mapping[str, str] | None = None) -> str:
        """The output of the template. Raises `BadRequest` for every error in it, `Overloaded` if no process is free.

        context: JSON values. markers: placeholder of a medium by modality, for a template that reads the content of a
        message as one string.
        """
        job = {"template": template, "context": context, "markers": markers or {}, "max_chars": self._max_chars}
        return self._ask(job)

    def close(self) -> None:
        """End the processes. Jobs that are still running fail."""
        self._finalizer()

    def _ask(self, job: Mapping[str, Any]) -> str:
        try:
            request = json.dumps(job).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRequest(f"A chat template takes only JSON values: {error}.", "messages") from error
        if not self._capacity.acquire(timeout=self._timeout_s):
            raise Overloaded("All processes that render chat templates are busy; try again later.")
        try:
            process = self._acquire_process()
            reply = self._exchange(process, request)
        finally:
            self._capacity.release()
        if "error" in reply:
            raise BadRequest(f"The chat template failed: {reply['error']}.".replace("..", "."), "messages")
        return str(reply["text"])

    def _acquire_process(self) -> ChildProcess:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        process = _start(self._memory_bytes, cpu_s=2 + int(self._timeout_s))
        with self._lock:
            self._all.add(process)  # after `close`, `_exchange` ends it
        return process

    def _exchange(self, process: ChildProcess, request: bytes) -> Mapping[str, Any]:
        """The reply of a process. A process that does not reply is ended; the next job starts another."""
        replied = False
        try:
            reply = _reply_of(process, request, self._timeout_s)
            replied = True
        except TimeoutError as error:
            raise BadRequest(
                f"The chat template took longer than {self._timeout_s:g} seconds and was stopped.", "messages"
            ) from error
        except (EOFError, OSError, ValueError) as error:
            raise BadRequest("The chat template crashed the process that rendered it.", "messages") from error
        finally:
            with self._lock:
                kept = replied and self._finalizer.alive
                if kept:
                    self._idle.append(process)
                else:
                    self._all.discard(process)
            if not kept:
                process.end()
        return reply


def _start(memory_bytes: int, cpu_s: int) -> ChildProcess:
    """A sandbox process that is ready for jobs. Raises QuireError if it does not start."""
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    arguments = ["-B", "-P", str(Path(sandbox.__file__)), str(memory_bytes), str(cpu_s)]
    process = ChildProcess(arguments, environment, quiet=True, new_session=True)
    try:
        process.receive(time.monotonic() + START_TIMEOUT_S)
    except (EOFError, OSError) as error:
        process.end()
        raise QuireError("The process that renders chat templates could not be started.") from error
    return process


def _reply_of(process: ChildProcess, request: bytes, timeout_s: float) -> Mapping[str, Any]:
    """The reply to a job. Raises TimeoutError, EOFError, OSError, or ValueError for one that is malformed."""
    body, _ = process.ask(request, timeout_s)
    reply = json.loads(body)
    if not isinstance(reply, dict):
        raise ValueError("not an object")
    return reply


def _end_all(processes: set[ChildProcess]) -> None:
    for process in list(processes):
        process.end()
    processes.clear()
