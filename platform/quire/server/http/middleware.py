"""The ASGI middleware of the server: request ids, body limit, response blocks, errors of plugins, `HEAD` as `GET`."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.errors import Overloaded, QuireError, TooLarge
from quire.hooks.call_stats import plugin_behind, plugin_fault
from quire.log_format import request_fields
from quire.records import Registry
from quire.server.http.errors import ClientDisconnected, error_response
from quire.server.http.request_ids import REQUEST_ID_HEADER, header_id, random_id

MAX_LARGE_BODIES = 16
"""The bodies of all requests together may have the bytes of this many bodies of the largest size."""

BLOCK_BYTES = 256 << 10
"""A response body is sent in blocks of this size."""


class RequestIdMiddleware:
    """Gives every request an id, that of its `X-Request-Id` or a new one, for log records and responses.

    Clients may send the same id twice, so the engine never uses it alone.
    """

    def __init__(self, app: ASGIApp, sends: bool = True) -> None:
        """sends: add `X-Request-Id` to responses."""
        self.app, self._sends = app, sends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name = header_id(Headers(scope=scope))
        if name is None:
            name = random_id()
            scope = {**scope, "headers": [*scope["headers"], (REQUEST_ID_HEADER.encode(), name.encode())]}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = name
            await send(message)

        fields = request_fields.set({**request_fields.get(), "request_id": name})
        try:
            await self.app(scope, receive, send_with_id if self._sends else send)
        finally:
            request_fields.reset(fields)


class BodyLimitMiddleware:
    """Answers 413 to a request body of more than `max_bytes`, and 503 when all bodies together are too large.

    A body that announces its length is refused before a byte is read, a chunked body as soon as it is over the limit.
    Starlette's `RequestBodyLimitMiddleware` answers in plain text and has no limit on all bodies together.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self._held = 0  # bytes of the bodies of requests that have not been answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self.max_bytes:
            await self._refuse(scope, receive, send)
            return
        await self._run_counting(scope, receive, send)

    async def _run_counting(self, scope: Scope, receive: Receive, send: Send) -> None:
        received, started, refused = 0, False, False

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            self._held += size
            if received > self.max_bytes:
                raise self._error()
            if size and self._held > MAX_LARGE_BODIES * self.max_bytes:
                raise Overloaded("The server holds too many bytes of request bodies; try again later.")
            return message

        async def send_guarded(message: Message) -> None:
            # The answer is 413 even if the application turned the exception into another response.
            nonlocal started, refused
            if received > self.max_bytes and not started:
                if not refused:
                    refused = True
                    await self._refuse(scope, receive, send)
                return
            started = True
            await send(message)

        try:
            await self.app(scope, receive_counted, send_guarded)
        finally:
            self._held -= received

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(self._error())(scope, receive, send)

    def _error(self) -> TooLarge:
        return TooLarge(f"The request body may have at most {self.max_bytes} bytes.")


class ResponseBlocksMiddleware:
    """Sends response bodies in blocks of `BLOCK_BYTES`: a larger write is copied at once and blocks the event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_blocks(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) <= BLOCK_BYTES:
                await send(message)
                return
            for begin in range(0, len(body), BLOCK_BYTES):
                end = begin + BLOCK_BYTES
                more = end < len(body) or message.get("more_body", False)
                await send({"type": message["type"], "body": body[begin:end], "more_body": more})

        await self.app(scope, receive, send_in_blocks if scope["type"] == "http" else send)


class PluginErrorMiddleware:
    """Turns any exception that plugin code raises in a route, `SystemExit` included, into `PluginFailed`."""

    def __init__(self, app: ASGIApp, registry: Registry) -> None:
        self._app, self._registry = app, registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except (QuireError, ClientDisconnected, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            plugin = plugin_behind(self._registry, error)
            if plugin is None:
                raise
            raise plugin_fault(self._registry, plugin, None, error) from error


class HeadAsGetMiddleware:
    """Answers `HEAD` like `GET`, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self.app({**scope, "method": "GET"}, receive, send_without_body)
