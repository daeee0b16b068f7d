"""The host's end of the socket to the API process. The step loop neither reads nor waits here.

A thread reads and decodes what arrives. What is sent goes into the socket at once; only when the other side
does not keep up, a second thread writes what is left.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue

from quire.host.frames import Frames, framed
from quire.host.protocol import Message, ToHost, Unreadable, decode_to_host, encode

READ_BYTES = 1 << 20


class Link:
    """A connected stream socket. `send` is one thread's."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream
        # Who waits in `recv` is woken whenever the other side reads, which it does for each step; who polls is not.
        self._arrivals = select.poll()
        self._arrivals.register(stream, select.POLLIN)
        self._left: SimpleQueue[memoryview | None] = SimpleQueue()
        self._num_left = 0  # only the sending thread counts here,
        self._num_written = 0  # and only the writing thread here: equal when nothing is left
        self._writer = threading.Thread(target=self._write, name="writer", daemon=True)
        self._writer.start()

    def read(self, put: Callable[[ToHost | Unreadable], None]) -> None:
        """Hand on every message until the other side is gone; raises for what is no message."""
        frames = Frames()
        while data := self._receive():
            for frame in frames.feed(data):
                put(decode_to_host(frame))

    def _receive(self) -> bytes:
        self._arrivals.poll()
        try:
            return self._socket.recv(READ_BYTES)
        except ConnectionError:  # it went away with something of ours unread
            return b""

    def send(self, message: Message) -> None:
        """Send, in order; never waits. Nothing comes of it when nobody is there any more."""
        data = memoryview(framed(encode(message)))
        if self._num_left == self._num_written:
            try:
                sent = self._socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._num_left += 1
        self._left.put(data)

    def finish(self, timeout_s: float) -> None:
        """Send no more; wait at most `timeout_s` until all has been written."""
        self._left.put(None)
        self._writer.join(timeout_s)

    def _write(self) -> None:
        while (data := self._left.get()) is not None:
            try:
                self._socket.sendall(data)
            except OSError:
                return
            self._num_written += 1
