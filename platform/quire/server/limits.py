"""A bound on the size of request bodies, enforced while they arrive.

A body that announces its length is refused before a byte is read; one in chunks as soon as it is over.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.errors import Overloaded, TooLarge
from quire.server.errors import error_response

BODIES_AT_ONCE = 16
"""Bodies of the largest size that may be held at once; small ones are many more."""


class BodyLimit:
    """ASGI middleware that answers 413 to a body of more than `max_bytes`, and 503 when all together are too large."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self._held = 0  # bytes of the bodies of requests that have not been answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count bytes as the application asks for them."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self.max_bytes:
            await self._refuse(scope, receive, send)
            return
        await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        received, started, refused = 0, False, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            if received + size > self.max_bytes:
                received, self._held = received + size, self._held + size
                raise self._error()
            if size and self._held + size > BODIES_AT_ONCE * self.max_bytes:
                raise Overloaded("The server holds too many bytes of requests' bodies; try again later.")
            received += size
            self._held += size
            return message

        async def guarded(message: Message) -> None:
            # Whatever the application made of the exception, the answer is 413.
            nonlocal started, refused
            if received > self.max_bytes and not started:
                if not refused:
                    refused = True
                    await self._refuse(scope, receive, send)
                return
            started = True
            await send(message)

        try:
            await self.app(scope, counted, guarded)
        finally:
            self._held -= received

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(self._error())(scope, receive, send)

    def _error(self) -> TooLarge:
        return TooLarge(f"The request body may have at most {self.max_bytes} bytes.")
