"""Names of requests: the client's `X-Request-Id`, the body's `request_id`, or a random one.

The name is for people and logs. It need not be unique, so the engine never sees it alone.
"""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
MAX_LENGTH = 256


def random_id() -> str:
    """32 hexadecimal digits."""
    return uuid.uuid4().hex


def header_id(headers: Headers) -> str | None:
    """The client's id, cut to a bounded length and to what may stand in a header; None when it sent none."""
    name = "".join(filter(str.isprintable, headers.get(HEADER, "")[:MAX_LENGTH]))
    return name.strip() or None


class EchoRequestId:
    """ASGI middleware that gives every HTTP answer an `X-Request-Id`: the client's, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the request before the application sees it, and the answer after."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name = header_id(Headers(scope=scope))
        if name is None:
            name = random_id()
            scope = {**scope, "headers": [*scope["headers"], (HEADER.encode(), name.encode())]}

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = name
            await send(message)

        await self.app(scope, receive, named)
