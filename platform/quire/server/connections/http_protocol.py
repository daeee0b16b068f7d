"""HTTP/1.1 on one connection, with limits: size and number of headers, and the time and rate of receiving a request.

A violation is answered with an error object, and the connection is closed.
"""

from __future__ import annotations

import asyncio
import http
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from quire.server.connections.connections import Connections

SLICE = 16 << 10
"""While headers are read, the parser gets at most this many bytes at once, so that an endless header is noticed."""

FRAMING = 16
"""Allowed bytes of framing per byte of a chunked body."""

DISCARDED_BYTES = 1 << 20
FLUSH_TIMEOUT_S = 2.0
"""A rejected client may send so many more bytes for so long: a reset in between could destroy the response."""

TYPES = {400: "BadRequestError", 403: "PermissionDeniedError", 503: "ServiceUnavailableError"}


class _RejectedByLimit(Exception):
    """Stops the parser; `_error` has the response."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the limits of `Connections`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._limits = connections.limits
        self.timeout_keep_alive = self._limits.keep_alive_s  # type: ignore[assignment]
        self.address = ""
        self.idle_since: float | None = None
        self._in_head = True
        self._num_headers = 0
        self._head_bytes = 0  # of this request's line, headers and trailers
        self._fed_bytes = 0  # passed to the parser since the request began
        self._body_bytes = 0
        self._body_started_at = self._received_at = 0.0
        self._error: tuple[int, str] | None = None
        self._discarded: int | None = None  # bytes dropped since the connection was rejected; None before
        self._timer: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection, or reject it if there are too many."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.idle_since = now = self.loop.time()
        reason = self._connections.add(self, now)
        if reason is not None:
            self._reject(503, reason)
            return
        self._wait(self._limits.keep_alive_s, self.close_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """Close a connection that waits for a request."""
        self._unset_keepalive_if_required()
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.close()

    def eof_received(self) -> None:
        """A rejected client has stopped sending, so the connection can be closed."""
        if self._discarded is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, in slices while they may be headers."""
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > DISCARDED_BYTES:
                self.transport.abort()
            return
        if self.idle_since is not None:
            self.idle_since = None
            self._wait(self._limits.header_timeout_s, self._headers_late)
        self._received_at = self.loop.time()
        while data and self._discarded is None and self.parser is not None:
            chunk = data[:SLICE] if self._in_head else data
            data = data[len(chunk) :]
            self._fed_bytes += len(chunk)
            super().data_received(chunk)
            self._check_fed()

    def _check_fed(self) -> None:
        """Reject a client that sends neither headers nor body: an endless header, or almost only chunk framing."""
        accounted = self._head_bytes + self._body_bytes * FRAMING
        if self._fed_bytes - accounted > self._limits.max_header_bytes + SLICE:
            self._reject(431, self._headers_too_large())

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._num_headers = True, 0
        self._head_bytes = self._fed_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after a chunked body."""
        self._num_headers += 1
        if self._num_headers > self._limits.max_headers:
            self._stop_parsing(431, f"A request may have at most {self._limits.max_headers} headers (--max-headers).")
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The application starts to run, and the time limit of the body begins."""
        self._in_head = False
        self._body_started_at = self.loop.time()
        self._wait(self._limits.body_timeout_s, self._check_body)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete, so its time limits end."""
        self._in_head = True
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The connection becomes idle unless the next request has already arrived."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and self._timer is None:
            self.idle_since = self.loop.time()

    def _count(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > self._limits.max_header_bytes:
            self._stop_parsing(431, self._headers_too_large())

    def _headers_too_large(self) -> str:
        return f"A request's headers may have at most {self._limits.max_header_bytes} bytes (--max-header-bytes)."

    def _stop_parsing(self, status: int, message: str) -> None:
        self._error = status, message
        raise _RejectedByLimit

    # WebSockets

    def _should_upgrade_to_ws(self) -> bool:
        """Other paths answer a request for a WebSocket as one without it, as RFC 9110 allows."""
        path = self.url.partition(b"?")[0].decode("latin-1")
        return path in self._limits.websocket_paths and self.parser.get_method() == b"GET"

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: any client may ask for any protocol."""

    def handle_websocket_upgrade(self) -> None:
        """Give the connection to `BoundedWebSocketProtocol`, unless a web page of another origin asks.

        Browsers let every page open WebSockets to every server, unlike requests, which CORS restricts.
        """
        from quire.server.connections.websocket_protocol import BoundedWebSocketProtocol  # few servers need websockets

        headers = {name: value.decode("latin-1") for name, value in self.headers}
        origin, allowed = headers.get(b"origin"), self._limits.allowed_origins
        own = headers.get(b"host", "").lower()
        if origin is not None and urlsplit(origin).netloc.lower() != own and not allowed & {origin, "*"}:
            self._reject(403, f"Web pages of {origin:.200} may not connect (--allowed-origins).")
            return
        self.ws_protocol_class = partial(  # type: ignore[assignment]
            BoundedWebSocketProtocol,
            on_lost=partial(self._connections.remove, self),
            handshake_timeout_s=self._limits.header_timeout_s,
        )
        self._stop_waiting()
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # bytes that were sent before the answer are not HTTP

    # Time limits

    def _wait(self, seconds: float, then: Any) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _headers_late(self) -> None:
        limit = self._limits.header_timeout_s
        self._reject(408, f"The request's headers did not arrive within {limit:g} s (--header-timeout-s).")

    def _check_body(self) -> None:
        """Reject a body that stalls or is too slow. Time in which the application does not read does not count."""
        now, limit = self.loop.time(), self._limits.body_timeout_s
        if self.flow.read_paused:
            self._received_at = now
            self._body_started_at = now - self._body_bytes / self._limits.min_body_rate
        allowed = limit + self._body_bytes / self._limits.min_body_rate
        left = min(self._received_at + limit, self._body_started_at + allowed) - now
        if left > 0:
            self._wait(left, self._check_body)
            return
        reason = f"The request's body stopped for {limit:g} s, or was slower than {self._limits.min_body_rate}"
        self._reject(408, f"{reason} bytes a second (--body-timeout-s).")

    # Rejection

    def send_400_response(self, msg: str) -> None:
        """Called by the parser for an invalid request; the response names the limit if one was exceeded."""
        status, message = self._error or (400, msg)
        self._reject(status, message)

    def _reject(self, status: int, message: str) -> None:
        """Send an error if no response has begun, and close; to the application, the client has disconnected."""
        self._connections.remove(self)
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self._discarded, self.idle_since = 0, None
        cycle = self.cycle
        begun = cycle is not None and cycle.response_started
        can_answer = not begun or (self._in_head and cycle.response_complete)  # otherwise a response is being sent
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.headers = []
        if self.transport.is_closing():
            return
        if can_answer:
            self.transport.write(_error_bytes(status, message))
        if not can_answer or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.flow.resume_reading()
        self.transport.write_eof()
        self._wait(FLUSH_TIMEOUT_S, self.transport.abort)


def _error_bytes(status: int, message: str) -> bytes:
    phrase = http.HTTPStatus(status).phrase
    detail = {"message": message, "type": TYPES.get(status, phrase), "param": None, "code": status}
    body = msgspec.json.encode({"error": detail})
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body
