"""From a job to the bytes of its stream, and from bytes to an HTTP answer. It knows no wire shapes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi import Request as HttpRequest
from starlette.responses import Response

from quire.server.job import Job
from quire.server.sse import DONE, EventStream, unless_gone
from quire.text.outputs import Piece


async def stream_events(
    job: Job, write: Callable[[int, Piece], bytes], last: Callable[[], bytes]
) -> AsyncGenerator[bytes]:
    """The events of a job: each piece its own, those that arrive together sent together."""
    async with aclosing(job.pieces()) as batches:
        async for pieces in batches:
            if len(pieces) == 1:
                data = write(*pieces[0])
            else:
                data = b"".join([write(number, piece) for number, piece in pieces])
            if data:
                yield data
    yield last() + DONE


async def stream_response(request: HttpRequest, events: AsyncGenerator[bytes]) -> Response:
    """The answer that streams `events`.

    It begins when the first event is there: what goes wrong before still becomes a proper status.
    """
    try:
        first = await unless_gone(request.receive, anext(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(events, first)
