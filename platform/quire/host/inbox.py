"""What arrives at the host: messages from its socket, and calls that its own worker threads hand over.

It knows neither engines nor what the messages mean.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import zmq

from quire.host.protocol import ToHost, Unreadable, decode_to_host

Item = ToHost | Unreadable | Callable[[], None]


class Inbox:
    """One queue of both; `take` is the loop thread's, `call` anybody's."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        """`socket`: connected to the API process."""
        self._socket = socket
        self._calls: deque[Callable[[], None]] = deque()
        # A pipe wakes the poll below; a queue alone could not.
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._wake_out, zmq.POLLIN)

    def call(self, function: Callable[[], None]) -> None:
        """Have the loop thread call `function` between two steps."""
        self._calls.append(function)
        with suppress(BlockingIOError):  # when the pipe is full of wake-ups already
            os.write(self._wake_in, b"x")

    def take(self, timeout_s: float | None) -> list[Item]:
        """All that has arrived; waits up to `timeout_s` (None: as long as it takes) for something to."""
        ready = dict(self._poller.poll(None if timeout_s is None else round(timeout_s * 1000)))
        items: list[Item] = []
        if self._wake_out in ready:
            os.read(self._wake_out, 4096)
            while self._calls:
                items.append(self._calls.popleft())
        if self._socket in ready:
            while True:
                try:
                    items.append(decode_to_host(self._socket.recv(zmq.NOBLOCK)))
                except zmq.Again:
                    break
        return items
