"""Server-sent events: bytes out, nothing known of what they say.

One event is `data: <json>` and a blank line; the last is `data: [DONE]`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
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
    """Sends the events that `run` puts, as they come, and cancels it when the client goes away.

    `run` begins at once, in a task of its own, and `put` may be called from anywhere on the event loop. An exception
    of `run` becomes an error object inside the stream, since its status is long sent.
    """

    media_type = "text/event-stream"

    def __init__(self, run: Callable[[Callable[[bytes], None]], Coroutine[Any, Any, None]]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._held: list[bytes] = []  # what was put and not yet sent
        self._reader: asyncio.Future[None] | None = None
        self._running = asyncio.create_task(run(self._put))
        self._running.add_done_callback(lambda _: self._wake())

    def _put(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _more(self) -> bool:
        """Wait until something is held, or nothing will come any more."""
        while not self._held and not self._running.done():
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return bool(self._held)

    async def begun(self) -> None:
        """Return when there is something to send; raises what went wrong before."""
        if not await self._more():
            self._running.result()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end or the client is gone."""
        try:
            with contextlib.suppress(ClientGone):
                await unless_gone(receive, self._send(send, scope.get(DIRECT, send)))
        finally:
            await self.close()

    async def _send(self, begin: Send, send: Send) -> None:
        await begin({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            while await self._more():
                held, self._held = self._held, []
                await send({"type": "http.response.body", "body": b"".join(held), "more_body": True})
        except OSError:
            return
        error = self._running.exception()
        if error is not None:
            await send({"type": "http.response.body", "body": failure(error), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def close(self) -> None:
        """End what gives the events, and wait until it has ended."""
        self._running.cancel()
        await settle(self._running)


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
