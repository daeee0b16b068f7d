"""Server-sent events: `data: <json>` and a blank line for each; the last is `data: [DONE]`.

`EventStream` replaces Starlette's `StreamingResponse` and FastAPI's `EventSourceResponse`: an error before the first
event still gets its HTTP status, an error after it becomes an error object in the stream, and events that are ready
together are sent in one write that bypasses the middleware.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.server.http.cancel_scope import CancelScope
from quire.server.http.errors import ClientDisconnected, as_quire_error, error_object

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
RAW_SEND = "quire.send"
"""Key of the server's own `send` in the scope. Middleware that wraps `send` only needs the start of a response; calling
it for every event would cost time."""

_encode = msgspec.json.Encoder().encode


def event(value: Any) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def failure(error: BaseException) -> bytes:
    """The events that end a stream after an error."""
    return event(error_object(as_quire_error(error))) + DONE


class EventStream(Response):
    """Sends the events that `run` passes to `put`, and cancels `run` when the client disconnects.

    `run` starts at once in its own task; `put` may be called from anywhere on the event loop. An exception of `run`
    becomes an error object in the stream, which `failure` makes, because the status has been sent by then.

    The task of the request waits for events itself, and one task watches the client from the first wait to the end:
    each change of tasks before the first event would let the events of all other streams go first.
    """

    def __init__(
        self,
        run: Callable[[Callable[[bytes], None]], Coroutine[Any, Any, None]],
        failure: Callable[[BaseException], bytes] = failure,
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type=media_type)
        self._failure = failure
        del self.headers["content-length"]
        self._unsent: list[bytes] = []
        self._reader: asyncio.Future[None] | None = None
        self._running = asyncio.create_task(run(self._put))
        self._running.add_done_callback(lambda _: self._wake())
        self._connected = CancelScope()
        self._watching: asyncio.Task[None] | None = None

    def _put(self, data: bytes) -> None:
        if data:
            self._unsent.append(data)
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _more(self) -> bool:
        """Wait for the next events; False when there are no more."""
        while not self._unsent and not self._running.done():
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return bool(self._unsent)

    async def wait_first(self, receive: Receive) -> None:
        """Return when the first event is there. receive: the one that the response is called with later.

        Raises what `run` raised before it, and `ClientDisconnected` if the client went first; `run` has ended then.
        """
        self._watch(receive)
        try:
            with self._connected:
                if not await self._more():
                    self._running.result()
        except BaseException:
            await self._close()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._watch(receive)
        try:
            with contextlib.suppress(ClientDisconnected), self._connected:
                await self._send(send, scope.get(RAW_SEND, send))
        finally:
            await self._close()

    def _watch(self, receive: Receive) -> None:
        if self._watching is None:
            self._watching = asyncio.create_task(_disconnected(receive))
            self._watching.add_done_callback(lambda _: self._connected.stop(ClientDisconnected()))

    async def _send(self, begin: Send, send: Send) -> None:
        await begin({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        ended = False
        with contextlib.suppress(OSError):
            while not ended:
                await self._more()
                unsent, self._unsent = self._unsent, []
                ended = self._running.done()
                if ended and (error := self._running.exception()) is not None:
                    unsent.append(self._failure(error))
                await send({"type": "http.response.body", "body": b"".join(unsent), "more_body": not ended})

    async def _close(self) -> None:
        """Cancel `run`, and wait until it has ended."""
        if self._watching is not None:
            self._watching.cancel()
        if not self._running.done():
            self._running.cancel()
            await gather_quietly(self._running)


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client disconnects first, cancel `work` and raise `ClientDisconnected`."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnected
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
        await gather_quietly(working, watching)


async def gather_quietly(*tasks: Awaitable[Any]) -> None:
    """Wait for cancelled tasks and ignore their results and exceptions."""
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
