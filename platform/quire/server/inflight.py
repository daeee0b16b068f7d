"""The HTTP requests that are generating now, so that a shutdown can wait for them or end them.

Those that still wait for gates or for their media are refused at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from quire.errors import Overloaded, QuireError
from quire.server.stopping import Stopping

UNFINISHED = "The server is shutting down; the request was not finished."


class Stops(Protocol):
    """Something in flight that can be ended from outside."""

    def stop(self, error: QuireError) -> None:
        """End it; whoever waits for it gets `error`."""
        ...


class InFlight:
    """Who is in flight. `closed_at`: when it was that no new ones were taken any more (time.monotonic)."""

    def __init__(self) -> None:
        self._jobs: dict[int, Stops] = {}
        self._coming: dict[int, Stopping] = {}
        self.closed_at: float | None = None

    @property
    def closed(self) -> bool:
        """Whether no new ones are taken."""
        return self.closed_at is not None

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Stops) -> None:
        """Take one in, or raise `Overloaded` when the server is shutting down."""
        if self.closed:
            raise _closed()
        self._jobs[id(job)] = job

    def remove(self, job: Stops) -> None:
        """It has ended."""
        self._jobs.pop(id(job), None)

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        """Around what a request waits for before it can be added: `Overloaded` as soon as that is too late."""
        if self.closed:
            raise _closed()
        stopping = Stopping()
        self._coming[id(stopping)] = stopping
        try:
            with stopping:
                yield
        finally:
            del self._coming[id(stopping)]

    def close(self) -> None:
        """Take in no more."""
        self.closed_at = time.monotonic()
        for stopping in self._coming.values():
            stopping.stop(_closed())

    def stop_all(self, error: QuireError) -> None:
        """End all that are left."""
        for job in list(self._jobs.values()):
            job.stop(error)


def _closed() -> Overloaded:
    return Overloaded("The server is shutting down.")
