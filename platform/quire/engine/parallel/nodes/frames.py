"""Messages of ranks that are not a group yet: JSON objects of limited size, within a limited time."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

LENGTH = struct.Struct(">I")
MAX_BYTES = 1 << 16
GREETING_S = 5.0
"""How long the first message of a connection may take."""


def send_frame(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Raises OSError if the other end is gone."""
    body = json.dumps(message).encode()
    connection.sendall(LENGTH.pack(len(body)) + body)


def receive_frame(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """The next message. deadline: of `time.monotonic`. Raises OSError without one, ValueError if it is malformed."""
    (length,) = LENGTH.unpack(_receive_exactly(connection, LENGTH.size, deadline))
    if length > MAX_BYTES:
        raise ValueError(f"a message of {length} bytes")
    found = json.loads(_receive_exactly(connection, length, deadline))
    if not isinstance(found, dict):
        raise ValueError("a message that is not a JSON object")
    return found


def seconds_until(deadline: float) -> float:
    """The time left for a wait. Raises TimeoutError if the deadline has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _receive_exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    found = bytearray()
    while len(found) < count:
        connection.settimeout(seconds_until(deadline))
        block = connection.recv(count - len(found))
        if not block:
            raise ConnectionResetError("the connection was closed")
        found += block
    return bytes(found)
