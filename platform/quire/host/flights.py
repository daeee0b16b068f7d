"""Requests in flight as the API process sees them: who waits for which deltas.

It knows nothing of processes or sockets. Use from one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from quire.errors import BadRequest, QuireError, error_told
from quire.types import Delta, Request


@dataclass(slots=True)
class Flight:
    """A request, its seqs that have not ended, and what has come of it since its reader last looked."""

    model: str
    request_id: str
    open: set[int]
    deltas: list[Delta] = field(default_factory=list)
    error: QuireError | None = None
    reader: asyncio.Future[None] | None = None

    def take(self, delta: Delta) -> None:
        """Add a delta, unless its seq has ended already."""
        if delta.index not in self.open:
            return
        if delta.error is not None:
            self.fail(error_told(delta.error))
            return
        self.deltas.append(delta)
        if delta.finish_reason is not None:
            self.open.discard(delta.index)
        if self.reader is not None and not self.reader.done():
            self.reader.set_result(None)

    def fail(self, error: QuireError) -> None:
        """End with an error; only the first counts."""
        self.error = self.error or error
        if self.reader is not None and not self.reader.done():
            self.reader.set_result(None)

    def stop(self, index: int | None) -> None:
        """One seq, or all, end here and now with the reason "abort"."""
        for i in sorted(self.open) if index is None else [index]:
            self.take(Delta(request_id=self.request_id, index=i, finish_reason="abort"))

    async def next(self) -> list[Delta] | None:
        """All that has come since the last call, waiting for something to; None once every seq has ended.

        Raises the error, if there is one, when what came before it has been read. One reader at a time.
        """
        while not self.deltas:
            if self.error is not None:
                raise self.error
            if not self.open:
                return None
            self.reader = asyncio.get_running_loop().create_future()
            await self.reader
        deltas, self.deltas = self.deltas, []
        return deltas


async def arrivals(flights: Iterator[Flight], most: int) -> AsyncGenerator[list[Delta], None]:
    """Deltas as they come for any of these, those of one flight at a time, until all have ended.

    The next is taken from `flights` when fewer than `most` are left. Raises the error of the first that fails, when
    what came for it before has been read. It is their one reader.
    """
    left = list(islice(flights, most))
    while left:
        for flight in [flight for flight in left if flight.deltas or flight.error is not None]:
            deltas, flight.deltas = flight.deltas, []
            if deltas:
                yield deltas
            if flight.error is not None:
                raise flight.error
        left = [flight for flight in left if flight.open or flight.deltas]
        left += islice(flights, most - len(left))
        if left and not any(flight.deltas or flight.error is not None for flight in left):
            reader = asyncio.get_running_loop().create_future()
            for flight in left:
                flight.reader = reader
            await reader


class Flights:
    """All requests in flight, by id."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._flights)

    def begin(self, model: str, request: Request) -> Flight:
        """Note a request; raises BadRequest for an id that is in flight already."""
        if request.id in self._flights:
            raise BadRequest(f"A request with the id {request.id!r} is already in flight.", "request_id")
        flight = Flight(model, request.id, set(range(request.params.num_seqs)))
        self._flights[request.id] = flight
        self._none.clear()
        return flight

    def end(self, flight: Flight) -> None:
        """Forget a request."""
        self._flights.pop(flight.request_id, None)
        if not self._flights:
            self._none.set()

    def get(self, request_id: str) -> Flight | None:
        """The request with this id, if it is in flight."""
        return self._flights.get(request_id)

    def take(self, deltas: Iterable[Delta]) -> None:
        """Give each delta to the request it belongs to; those of forgotten ones are dropped."""
        for delta in deltas:
            flight = self._flights.get(delta.request_id)
            if flight is not None:
                flight.take(delta)

    def fail(self, error: QuireError) -> None:
        """End all requests with an error."""
        for flight in self._flights.values():
            flight.fail(error)

    async def drained(self, timeout_s: float) -> bool:
        """Whether none is left within `timeout_s`."""
        if not self._flights:
            return True
        try:
            await asyncio.wait_for(self._none.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
