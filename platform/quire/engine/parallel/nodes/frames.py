"""What processes say to each other before they trust each other: JSON of limited size, with a limited time."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

from quire.errors import StartupError

LENGTH = struct.Struct(">I")
MAX_BYTES = 1 << 16
GREETING_S = 10.0
"""How long a greeting, or the answer to it, may take."""

RETRY_S = 0.2
"""Pause between attempts to connect."""


class Refused(StartupError):
    """The other end does not take the connection; the message says why."""


def send_frame(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Raises OSError if the other end is gone."""
    body = json.dumps(message).encode()
    connection.sendall(LENGTH.pack(len(body)) + body)


def receive_frame(connection: socket.socket) -> dict[str, Any]:
    """The next message. Raises OSError (EOFError included) if there is none, and ValueError for what is none."""
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
    if length > MAX_BYTES:
        raise ValueError(f"a message of {length} bytes")
    found = json.loads(_exactly(connection, length))
    if not isinstance(found, dict):
        raise ValueError("a message that is no object")
    return found


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        block = connection.recv(count - len(found))
        if not block:
            raise ConnectionResetError("the connection was closed")
        found += block
    return bytes(found)


def connect(address: tuple[str, int], timeout_s: float) -> socket.socket:
    """A connection, tried again and again until the time is over. Raises OSError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection = socket.create_connection(address, max(0.1, min(GREETING_S, deadline - time.monotonic())))
        except OSError:
            if time.monotonic() + RETRY_S > deadline:
                raise
            time.sleep(RETRY_S)
            continue
        if connection.getsockname() != connection.getpeername():  # else it has met itself, for lack of a listener
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection.close()


def greet(connection: socket.socket, greeting: Mapping[str, Any]) -> None:
    """Say who connects, and await that it is welcome. Raises OSError, and Refused with the reason why it is not."""
    connection.settimeout(GREETING_S)
    send_frame(connection, greeting)
    answer = receive_frame(connection)
    if "error" in answer:
        raise Refused(str(answer["error"]))
    connection.settimeout(None)
