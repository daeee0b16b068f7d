"""HTTP/1.1 on one connection, under bounds: on headers before they are kept, and on the time that a client takes.

What goes wrong is answered in the error shape and ends the connection. It knows no routes.
"""

from __future__ import annotations

import asyncio
import http
from typing import Any

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from quire.server.connections import Connections

SLICE = 16 << 10
"""Bytes the parser gets at once while it reads headers, so that a header without an end is noticed soon."""

FRAMING = 16
"""Most bytes around a byte of a chunked body before the client is taken for one that sends nothing else."""

DISCARDED_BYTES = 1 << 20
LINGER_S = 2.0
"""What a refused client may still send, and how long, so that the answer reaches it before the connection is reset."""

TYPES = {400: "BadRequestError", 503: "ServiceUnavailableError"}


class _Refuse(Exception):
    """The request can't go on."""


class BoundedHttp(HttpToolsProtocol):
    """As uvicorn's, with `Connections` that say what a connection may take."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections_open: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._open = connections_open
        self._limits = connections_open.limits
        self.timeout_keep_alive = self._limits.keep_alive_s  # type: ignore[assignment]
        self.address = ""
        self.idle_since: float | None = None
        self._in_head = True
        self._num_headers = 0
        self._head_bytes = 0  # of this request's line and headers, trailers included
        self._fed_bytes = 0  # since the request began
        self._body_bytes = 0
        self._body_since = self._heard_at = 0.0
        self._error: tuple[int, str] | None = None
        self._discarded: int | None = None  # bytes thrown away since the connection was given up; None before
        self._timer: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection in, or say why not."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self.idle_since = now = self.loop.time()
        refused = self._open.add(self, now)
        if refused is not None:
            self._give_up(503, refused)
            return
        self._wait(self._limits.keep_alive_s, self.close_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._open.remove(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """Close a connection on which nothing was asked."""
        self._unset_keepalive_if_required()
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.close()

    def eof_received(self) -> None:
        """A client that was refused has nothing more to say."""
        if self._discarded is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse what came, in slices while it may be headers."""
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > DISCARDED_BYTES:
                self.transport.abort()
            return
        if self.idle_since is not None:
            self.idle_since = None
            self._wait(self._limits.header_timeout_s, self._headers_late)
        self._heard_at = self.loop.time()
        while data and self._discarded is None and self.parser is not None:
            piece = data[:SLICE] if self._in_head else data
            data = data[len(piece) :]
            self._fed_bytes += len(piece)
            super().data_received(piece)
            self._check_fed()

    def _check_fed(self) -> None:
        """Bytes that were neither a header nor body so far: a header without an end, or framing of chunks alone."""
        kept = self._head_bytes + self._body_bytes * FRAMING
        if self._fed_bytes - kept > self._limits.max_header_bytes + SLICE:
            self._give_up(431, self._headers_too_large())

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head, self._num_headers = True, 0
        self._head_bytes = self._fed_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the path."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after a body in chunks."""
        self._num_headers += 1
        if self._num_headers > self._limits.max_headers:
            self._refuse(431, f"A request may have at most {self._limits.max_headers} headers (--max-headers).")
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body comes next; the application begins to run."""
        self._in_head = False
        self._body_since = self.loop.time()
        self._wait(self._limits.body_timeout_s, self._check_body)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request is here."""
        self._in_head = True
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The connection waits for the next request, unless one has come already."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and self._timer is None:
            self.idle_since = self.loop.time()

    def _count(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > self._limits.max_header_bytes:
            self._refuse(431, self._headers_too_large())

    def _headers_too_large(self) -> str:
        return f"A request's headers may have at most {self._limits.max_header_bytes} bytes (--max-header-bytes)."

    def _refuse(self, status: int, message: str) -> None:
        self._error = status, message
        raise _Refuse

    # Time

    def _wait(self, seconds: float, then: Any) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(seconds, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _headers_late(self) -> None:
        limit = self._limits.header_timeout_s
        self._give_up(408, f"The request's headers did not arrive within {limit:g} s (--header-timeout-s).")

    def _check_body(self) -> None:
        """Give up on a body that stands still, or crawls; what the application doesn't take yet is not late."""
        now, limit = self.loop.time(), self._limits.body_timeout_s
        if self.flow.read_paused:
            self._heard_at = now
            self._body_since = now - self._body_bytes / self._limits.min_body_rate
        allowed = limit + self._body_bytes / self._limits.min_body_rate
        left = min(self._heard_at + limit, self._body_since + allowed) - now
        if left > 0:
            self._wait(left, self._check_body)
            return
        why = f"The request's body stood still for {limit:g} s, or came at less than {self._limits.min_body_rate}"
        self._give_up(408, f"{why} bytes a second (--body-timeout-s).")

    # The end

    def send_400_response(self, msg: str) -> None:
        """What the parser refused, in the error shape; a bound that was passed says which."""
        status, message = self._error or (400, msg)
        self._give_up(status, message)

    def _give_up(self, status: int, message: str) -> None:
        """Answer if nothing was answered yet, and end the connection; for the application the client is gone."""
        self._open.remove(self)
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self._discarded, self.idle_since = 0, None
        cycle = self.cycle
        begun = cycle is not None and cycle.response_started
        due = not begun or (self._in_head and cycle.response_complete)  # elsewhere there is no place for an answer
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.headers = []
        if self.transport.is_closing():
            return
        if due:
            self.transport.write(_answer(status, message))
        if not due or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.flow.resume_reading()
        self.transport.write_eof()
        self._wait(LINGER_S, self.transport.abort)


def _answer(status: int, message: str) -> bytes:
    phrase = http.HTTPStatus(status).phrase
    detail = {"message": message, "type": TYPES.get(status, phrase), "param": None, "code": status}
    body = msgspec.json.encode({"error": detail})
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body
