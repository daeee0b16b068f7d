"""From a job to the bytes of its stream, and from bytes to an HTTP answer. It knows no wire shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fastapi import Request as HttpRequest
from starlette.responses import Response

from quire.server.job import Job
from quire.server.sse import DONE, EventStream, unless_gone
from quire.text.outputs import Piece


class Events(Protocol):
    """Turns the pieces of a job into events."""

    job: Job

    def piece(self, number: int, piece: Piece) -> bytes:
        """The events for a piece that answers prompt `number`, or b""."""
        ...

    def last(self) -> bytes:
        """The events after all pieces, or b""."""
        ...


async def stream_response(request: HttpRequest, events: Events) -> Response:
    """The answer that streams the events of a job, those that arrive together sent together.

    It begins when the first event is there: what goes wrong before still becomes a proper status.
    """

    async def run(put: Callable[[bytes], None]) -> None:
        write = events.piece
        await events.job.run(lambda number, piece: put(write(number, piece)))
        put(events.last() + DONE)

    stream = EventStream(run)
    try:
        await unless_gone(request.receive, stream.begun())
    except BaseException:
        await stream.close()
        raise
    return stream
