"""The HTTP requests in progress, so that a shutdown can wait for them or end them.

Requests that still wait for gates or media when a shutdown begins are refused at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from quire.errors import Overloaded, QuireError
from quire.server.http.cancel_scope import CancelScope

UNFINISHED = "The server is shutting down; the request was not finished."


class Stoppable(Protocol):
    """A job on a model that another task can end."""

    @property
    def model(self) -> str: ...

    def stop(self, error: QuireError) -> None:
        """End the job; its waiting task gets `error`."""
        ...


class ActiveJobs:
    """The jobs that run now. `closed_at`: when the server stopped accepting jobs (time.monotonic), None before."""

    def __init__(self) -> None:
        self._jobs: dict[int, Stoppable] = {}
        self._pending: dict[int, CancelScope] = {}
        self.closed_at: float | None = None

    @property
    def closed(self) -> bool:
        """Whether new jobs are refused."""
        return self.closed_at is not None

    def __len__(self) -> int:
        return len(self._jobs)

    def models(self) -> set[str]:
        """The names of the models that jobs run on."""
        return {job.model for job in self._jobs.values()}

    @contextlib.contextmanager
    def running(self, job: Stoppable) -> Iterator[None]:
        """While a job runs; raises `Overloaded` when the server is shutting down."""
        if self.closed:
            raise _closed()
        self._jobs[id(job)] = job
        try:
            yield
        finally:
            del self._jobs[id(job)]

    @contextlib.contextmanager
    def pending(self) -> Iterator[None]:
        """Around a wait of a request before its job is added; raises `Overloaded` as soon as a shutdown begins."""
        if self.closed:
            raise _closed()
        scope = CancelScope()
        self._pending[id(scope)] = scope
        try:
            with scope:
                yield
        finally:
            del self._pending[id(scope)]

    def close(self) -> None:
        """Refuse new jobs and cancel pending waits."""
        self.closed_at = time.monotonic()
        for scope in self._pending.values():
            scope.stop(_closed())

    def stop_all(self, error: QuireError) -> None:
        """End all jobs with `error`."""
        for job in list(self._jobs.values()):
            job.stop(error)


def _closed() -> Overloaded:
    return Overloaded("The server is shutting down.")
