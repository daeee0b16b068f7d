"""The connection between the leader and one follower: pickled messages over an unnamed socket pair of two processes of
the same program, which nothing else can connect to.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

LENGTH = struct.Struct(">Q")
BLOCK_BYTES = 1 << 20
SEND_TIMEOUT_S = 30.0
"""A follower that reads nothing for so long is taken for dead."""


class Channel:
    """One end. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lock = threading.Lock()
        seconds = struct.pack("ll", int(SEND_TIMEOUT_S), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    def send(self, message: Any) -> None:
        """Raises OSError if the other end is gone."""
        self.send_body(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_body(self, body: bytes) -> None:
        """Send a message that is pickled already."""
        with self._lock:
            self.socket.sendall(LENGTH.pack(len(body)) + body)

    def receive(self) -> Any:
        """The next message. Raises EOFError if the other end is gone."""
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return pickle.loads(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            try:
                block = self.socket.recv(min(BLOCK_BYTES, count - len(found)))
            except OSError as error:
                raise EOFError from error
            if not block:
                raise EOFError
            found += block
        return bytes(found)

    def close(self) -> None:
        """End the connection; a `receive` of either end raises EOFError."""
        with suppress(OSError):  # the other end is gone
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
