"""Requests in flight as the API process sees them: who gets which deltas.

Deltas are handed on as they come, on the event loop, without waking a task for each. It knows nothing of processes
or sockets. Use from one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from quire.errors import BadRequest, QuireError, error_told
from quire.types import Delta, Request


class Party:
    """Requests that belong together: `take` gets their deltas, and the first error ends them all."""

    def __init__(self, take: Callable[[Delta], None]) -> None:
        self.take = take
        self.flights: list[Flight] = []
        self.num_open = 0
        self.error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    def left(self) -> None:
        """One of its flights has ended."""
        self.num_open -= 1
        self._tell()

    def fail(self, error: Exception) -> None:
        """End with an error; only the first counts."""
        self.error = self.error or error
        self._tell()

    def _tell(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def at_most(self, count: int) -> None:
        """Return when no more than so many of its flights are left; raises the error, if there is one."""
        while self.error is None and self.num_open > count:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class Flight:
    """A request and its seqs that have not ended."""

    model: str
    request_id: str
    open: set[int]
    party: Party

    def take(self, delta: Delta) -> None:
        """Hand on a delta, unless its seq has ended already."""
        party = self.party
        if delta.index not in self.open or party.error is not None:
            return
        if delta.error is not None:
            party.fail(error_told(delta.error))
            return
        try:
            party.take(delta)
        except Exception as error:  # what one makes of its deltas is no affair of the others
            party.fail(error)
        if delta.finish_reason is not None:
            self.open.discard(delta.index)
            if not self.open:
                party.left()


class Flights:
    """All requests in flight, by id."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._flights)

    def begin(self, model: str, request: Request, party: Party) -> Flight:
        """Note a request; raises BadRequest for an id that is in flight already."""
        if request.id in self._flights:
            raise BadRequest(f"A request with the id {request.id!r} is already in flight.", "request_id")
        flight = Flight(model, request.id, set(range(request.params.num_seqs)), party)
        self._flights[request.id] = flight
        self._none.clear()
        party.flights.append(flight)
        party.num_open += 1
        return flight

    def end(self, flight: Flight) -> None:
        """Forget a request."""
        if self._flights.get(flight.request_id) is flight:
            del self._flights[flight.request_id]
        if not self._flights:
            self._none.set()

    def get(self, request_id: str) -> Flight | None:
        """The request with this id, if it is in flight."""
        return self._flights.get(request_id)

    def take(self, deltas: Iterable[Delta]) -> None:
        """Give each delta to the request it belongs to; those of forgotten ones are dropped."""
        flights = self._flights
        for delta in deltas:
            flight = flights.get(delta.request_id)
            if flight is not None:
                flight.take(delta)
                if not flight.open:
                    self.end(flight)

    def stop(self, flight: Flight, index: int | None) -> None:
        """One seq of a request, or all, end here and now with the reason "abort"."""
        indices = sorted(flight.open) if index is None else [index]
        self.take([Delta(request_id=flight.request_id, index=i, finish_reason="abort") for i in indices])

    def fail(self, error: QuireError) -> None:
        """End all requests with an error."""
        for flight in self._flights.values():
            flight.party.fail(error)

    async def drained(self, timeout_s: float) -> bool:
        """Whether none is left within `timeout_s`."""
        if not self._flights:
            return True
        try:
            await asyncio.wait_for(self._none.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
