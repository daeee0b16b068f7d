"""The HTTP requests that are generating now, so that a shutdown can wait for them or end them."""

from __future__ import annotations

from typing import Protocol

from quire.errors import Overloaded, QuireError


class Stops(Protocol):
    """Something in flight that can be ended from outside."""

    def stop(self, error: QuireError) -> None:
        """End it; whoever waits for it gets `error`."""
        ...


class InFlight:
    """Who is in flight. `closed`: no new ones are taken."""

    def __init__(self) -> None:
        self._jobs: dict[int, Stops] = {}
        self.closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Stops) -> None:
        """Take one in, or raise `Overloaded` when the server is shutting down."""
        if self.closed:
            raise Overloaded("The server is shutting down.")
        self._jobs[id(job)] = job

    def remove(self, job: Stops) -> None:
        """It has ended."""
        self._jobs.pop(id(job), None)

    def close(self) -> None:
        """Take in no more."""
        self.closed = True

    def stop_all(self, error: QuireError) -> None:
        """End all that are left."""
        for job in list(self._jobs.values()):
            job.stop(error)
