"""From a job to the bytes of its stream, and from bytes to an HTTP answer. It knows no wire shapes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from fastapi import Request as HttpRequest
from starlette.responses import Response

from quire.server.job import Job
from quire.server.sse import DONE, EventStream, unless_gone
from quire.server.workers import Workers
from quire.text.long_texts import Wanted
from quire.text.outputs import Piece


async def _written_aside(events: Events, workers: Workers, put: Callable[[bytes], None]) -> None:
    """Run the job; its events are written by `workers`, in order."""
    pieces: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue()

    async def write_all() -> None:
        while (piece := await pieces.get()) is not None:
            put(await workers.run(partial(_write, events, *piece)))

    writing = asyncio.create_task(write_all())
    try:
        await events.job.run(lambda number, piece: pieces.put_nowait((number, piece)))
        pieces.put_nowait(None)
        await writing
    finally:
        writing.cancel()


def _write(events: Events, number: int, piece: Piece, _: Wanted) -> bytes:
    return events.piece(number, piece)


class Events(Protocol):
    """Turns the pieces of a job into events."""

    job: Job

    def piece(self, number: int, piece: Piece) -> bytes:
        """The events for a piece that answers prompt `number`, or b""."""
        ...

    def last(self) -> bytes:
        """The events after all pieces, or b""."""
        ...


async def stream_response(request: HttpRequest, events: Events, workers: Workers | None = None) -> Response:
    """The answer that streams the events of a job, those that arrive together sent together.

    It begins when the first event is there: what goes wrong before still becomes a proper status. workers: write the
    events, where some of them take long.
    """

    async def run(put: Callable[[bytes], None]) -> None:
        write = events.piece
        if workers is None:
            await events.job.run(lambda number, piece: put(write(number, piece)))
        else:
            await _written_aside(events, workers, put)
        put(events.last() + DONE)

    stream = EventStream(run)
    try:
        await unless_gone(request.receive, stream.begun())
    except BaseException:
        await stream.close()
        raise
    return stream
