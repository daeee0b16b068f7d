"""Server-sent events: bytes out, nothing known of what they say.

One event is `data: <json>` and a blank line; the last is `data: [DONE]`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.errors import ClientGone, as_quire_error, error_object

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
DIRECT = "quire.send"
"""Where a scope has the server's own `send`. Each layer of the application that wraps `send` looks only at how an
answer begins, but would cost time for every event."""

_encode = msgspec.json.Encoder().encode


def event(value: Any) -> bytes:
    """One event that carries `value` as JSON."""
    return b"data: " + _encode(value) + b"\n\n"


def failure(error: BaseException) -> bytes:
    """The events that end a stream which broke."""
    return event(error_object(as_quire_error(error))) + DONE


class EventStream(Response):
    """Sends `first`, then what `events` yields as it comes, and closes `events` when the client goes away.

    An exception of `events` becomes an error object inside the stream, since its status is long sent.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], first: bytes = b"") -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._first = events, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client is gone."""
        try:
            with contextlib.suppress(ClientGone):
                await unless_gone(receive, self._send(send, scope.get(DIRECT, send)))
        finally:
            await self._close()

    async def _send(self, begin: Send, send: Send) -> None:
        await begin({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            if self._first:
                await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except OSError:
            return
        except Exception as error:
            await send({"type": "http.response.body", "body": failure(error), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _close(self) -> None:
        close = getattr(self._events, "aclose", None)
        if close is not None:
            await close()


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it is cancelled, and `ClientGone` raised, if the client disconnects before."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
        await settle(working, watching)


async def settle(*tasks: Awaitable[Any]) -> None:
    """Wait for tasks that were told to end, whatever they end with."""
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
