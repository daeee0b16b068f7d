"""Length-prefixed messages on a byte stream, and the engine process's end of the socket.

A thread reads and decodes incoming messages. Outgoing messages are written at once by the step loop without blocking;
if the other side does not keep up, a second thread writes the rest.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable
from queue import SimpleQueue

from quire.engine_process.wire.message import WireMessage
from quire.engine_process.wire.protocol import MalformedRequest, ToEngine, decode_to_engine, encode

READ_BYTES = 1 << 20

_LENGTH = struct.Struct("<Q")
_HEADER_BYTES = _LENGTH.size


def encode_frame(data: bytes) -> bytes:
    """The message with its length (64 bits, little-endian) in front."""
    return _LENGTH.pack(len(data)) + data


class FrameDecoder:
    """Cuts a byte stream, which arrives in arbitrary chunks, into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[memoryview]:
        """The messages that `data` completes, in order."""
        stream: bytes | bytearray = data
        if self._rest:
            self._rest += data
            stream = self._rest
        view, found, begin = memoryview(stream), [], 0
        while len(view) >= begin + _HEADER_BYTES:
            end = begin + _HEADER_BYTES + _LENGTH.unpack_from(view, begin)[0]
            if len(view) < end:
                break
            found.append(view[begin + _HEADER_BYTES : end])
            begin = end
        if begin < len(view):
            if begin or stream is data:
                self._rest = bytearray(view[begin:])
        elif self._rest:
            self._rest = bytearray()
        return found


class Transport:
    """A connected stream socket. Only one thread may call `send`."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream
        # A thread in `recv` wakes up whenever the other side reads, that is for each step; one in `poll` does not.
        self._arrivals = select.poll()
        self._arrivals.register(stream, select.POLLIN)
        self._unsent: SimpleQueue[memoryview | None] = SimpleQueue()
        self._num_queued = 0  # only the sending thread counts here,
        self._num_written = 0  # and only the writing thread here: equal when the queue is empty
        self._writer = threading.Thread(target=self._write, name="writer", daemon=True)
        self._writer.start()

    def read(self, put: Callable[[ToEngine | MalformedRequest], None]) -> None:
        """Pass every message to `put` until the other side closes; raises for bytes that are not a message."""
        frames = FrameDecoder()
        while data := self._receive():
            for frame in frames.feed(data):
                put(decode_to_engine(frame))

    def _receive(self) -> bytes:
        self._arrivals.poll()
        try:
            return self._socket.recv(READ_BYTES)
        except ConnectionError:  # the other side closed without reading everything we sent
            return b""

    def send(self, message: WireMessage) -> None:
        """Send in order, without blocking. Messages to a closed socket are dropped."""
        data = memoryview(encode_frame(encode(message)))
        if self._num_queued == self._num_written:
            try:
                sent = self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._num_queued += 1
        self._unsent.put(data)

    def finish(self, timeout_s: float) -> None:
        """Accept no more messages, and wait at most `timeout_s` until all are written."""
        self._unsent.put(None)
        self._writer.join(timeout_s)

    def _write(self) -> None:
        while (data := self._unsent.get()) is not None:
            try:
                self._socket.sendall(data)
            except OSError:
                return
            self._num_written += 1
