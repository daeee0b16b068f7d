"""WebSocket on one connection, with limits: what a client leaves unread, and how long it takes to open and to close.

uvicorn limits the size of a message (`ws_max_size`), reads no message before the last one was taken, and closes a
connection whose client answers no ping. The connection keeps its place among the server's `Connections`.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.transports import BaseTransport
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

QUIET = logging.getLogger("quire.server.websockets.quiet")
QUIET.setLevel(logging.WARNING)
"""Without an access log, handshakes are not logged either, which uvicorn's own logger does at the level info."""

CLOSE_TIMEOUT_S = 5.0
"""A client gets so long to take what was sent and to close; then the connection is reset."""


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which a client cannot hold open or fill with unread data.

    on_lost: called when the connection has ended. handshake_timeout_s: until the application accepts or refuses.
    """

    def __init__(self, *args: Any, on_lost: Callable[[], None], handshake_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.config.access_log:
            self.logger = self.conn.logger = QUIET
        self._on_lost = on_lost
        self._handshake_timeout_s = handshake_timeout_s
        self._reset: asyncio.TimerHandle | None = None
        self._handshake: asyncio.TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """The handshake has arrived as an HTTP request; its time limit begins."""
        super().connection_made(transport)
        self._handshake = self.loop.call_later(self._handshake_timeout_s, self._handshake_late)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._reset, self._handshake):
            if timer is not None:
                timer.cancel()
        self._on_lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; a handshake that is no valid one ends the connection."""
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.close()

    # The transport's buffer

    def pause_writing(self) -> None:
        """Read nothing, pings included, while the client does not read: each ping is answered."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    # The end: a transport that closes first sends its buffer, for which a client may never make room.

    def shutdown(self) -> None:
        """The server ends; code 1012 asks the client to connect again."""
        super().shutdown()
        self._reset_later()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        self._reset_later()

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self._reset_later()

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of the application."""
        await super().send(message)
        if message["type"] == "websocket.close":
            self._reset_later()

    def _reset_later(self) -> None:
        if self._reset is None:
            self._reset = self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)

    def _handshake_late(self) -> None:
        if not self.handshake_complete:
            self.transport.abort()
