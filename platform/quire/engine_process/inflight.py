"""Requests in flight on the API process's side: hand each delta to the request that it belongs to.

Deltas are passed on synchronously on the event loop, so that no task has to wake up for each. For one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from quire.errors import BadRequest, QuireError, from_wire
from quire.types import Request, SeqDelta


class RequestBatch:
    """The requests of one call. `on_delta` gets their deltas; the first error ends them all."""

    def __init__(self, on_delta: Callable[[SeqDelta], None]) -> None:
        self.on_delta = on_delta
        self.entries: list[InFlightRequest] = []
        self.num_open = 0
        self.error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    def on_finished(self) -> None:
        """One of the requests has ended."""
        self.num_open -= 1
        self._wake()

    def fail(self, error: Exception) -> None:
        """End the batch with an error; later errors are ignored."""
        self.error = self.error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait_until(self, max_open: int) -> None:
        """Return when at most `max_open` requests are running; raises the batch's error if it has one."""
        while self.error is None and self.num_open > max_open:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self.error is not None:
            raise self.error


@dataclass(slots=True)
class InFlightRequest:
    """A request, and which of its seqs have not ended (`open`)."""

    model: str
    request_id: str
    open: set[int]
    batch: RequestBatch

    def on_delta(self, delta: SeqDelta) -> None:
        """Pass on a delta, unless its seq has ended already."""
        batch = self.batch
        if delta.index not in self.open or batch.error is not None:
            return
        if delta.error is not None:
            batch.fail(from_wire(delta.error))
            return
        try:
            batch.on_delta(delta)
        except Exception as error:  # a failing callback must not affect other batches
            batch.fail(error)
        if delta.finish_reason is not None:
            self.open.discard(delta.index)
            if not self.open:
                batch.on_finished()


class InFlightRequests:
    """All requests in flight, by id."""

    def __init__(self) -> None:
        self._entries: dict[str, InFlightRequest] = {}
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, model: str, request: Request, batch: RequestBatch) -> InFlightRequest:
        """Add a request; raises BadRequest if its id is in flight already."""
        if request.id in self._entries:
            raise BadRequest(f"A request with the id {request.id!r} is already in flight.", "request_id")
        entry = InFlightRequest(model, request.id, set(range(request.params.num_seqs)), batch)
        self._entries[request.id] = entry
        self._none.clear()
        batch.entries.append(entry)
        batch.num_open += 1
        return entry

    def end(self, entry: InFlightRequest) -> None:
        if self._entries.get(entry.request_id) is entry:
            del self._entries[entry.request_id]
        if not self._entries:
            self._none.set()

    def get(self, request_id: str) -> InFlightRequest | None:
        return self._entries.get(request_id)

    def on_deltas(self, deltas: Iterable[SeqDelta]) -> None:
        """Pass each delta to its request; deltas of requests that are not in flight are dropped.

        Those with a first token come first: a client waits for it, and what is passed on first is sent first.
        """
        entries = self._entries
        for delta in sorted(deltas, key=_goes_on):
            entry = entries.get(delta.request_id)
            if entry is not None:
                entry.on_delta(delta)
                if not entry.open:
                    self.end(entry)

    def abort(self, entry: InFlightRequest, index: int | None) -> None:
        """End one seq of a request, or all (None), now, with finish reason "abort"."""
        indices = sorted(entry.open) if index is None else [index]
        self.on_deltas([SeqDelta(request_id=entry.request_id, index=i, finish_reason="abort") for i in indices])

    def fail(self, error: QuireError, model: str | None = None) -> None:
        """Fail all requests with an error, or those of one model."""
        for entry in self._entries.values():
            if model in (None, entry.model):
                entry.batch.fail(error)

    async def drained(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until no request is in flight; whether that happened."""
        if not self._entries:
            return True
        try:
            await asyncio.wait_for(self._none.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


def _goes_on(delta: SeqDelta) -> bool:
    """Whether its request had deltas before."""
    return delta.num_cached_tokens is None
