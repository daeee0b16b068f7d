"""A Python process that replies to requests, one at a time, and that can be killed at any moment.

Requests and replies are frames: the length of the body in eight bytes, and the body. A reply may carry one open file.
The child finds its end of the connection as standard input and standard output.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO

from quire.isolation.idle_thread import run_when_idle

LENGTH = struct.Struct(">Q")
MAX_REPLY = 1 << 30
"""Largest body of a reply, in bytes."""
BLOCK_BYTES = 1 << 20
END_S = 2.0
"""How long `end` waits for the killed process. A thread waits for one that takes longer."""

KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "TZ", "LANG", "LC_ALL", "SYSTEMROOT")
"""Environment variables for a child that reads untrusted files; API keys and tokens are not among them."""


def path_variable() -> str:
    """PYTHONPATH with which a child finds the modules of this process."""
    return os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))


def bare_environment() -> dict[str, str]:
    """An environment without secrets, in which a child finds the modules of this process."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "PYTHONPATH": path_variable()}


def frame(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """The body of the next frame, for a child; None at the end of the stream."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


class ChildProcess:
    """One process. One thread at a time may send and receive; any thread may end it.

    arguments: what follows the interpreter on the command line. receives_files: replies may carry an open file; else
    files that the child sends are dropped. quiet: discard standard error. new_session: give the process a session of
    its own, without a terminal. Where sessions share the cores equally (autogroup), it gets a whole share.
    at_idle_priority: run it only on cores that no other process wants, also while the interpreter starts.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        receives_files: bool = False,
        quiet: bool = False,
        new_session: bool = False,
        at_idle_priority: bool = False,
    ) -> None:
        self._max_files = int(receives_files)
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL if quiet else None,
                env=dict(environment),
                start_new_session=new_session,
                process_group=None if new_session else 0,  # Ctrl-C in the terminal is for the server to handle
            )
        if at_idle_priority:
            run_when_idle(self._process.pid)

    def ask(self, request: bytes, timeout_s: float) -> tuple[bytes, int | None]:
        """The reply to a request, and the descriptor of the file that it carries.

        Raises TimeoutError, EOFError or OSError. After that, the process must be ended.
        """
        deadline = time.monotonic() + timeout_s
        self.send(request, deadline)
        return self.receive(deadline)

    def send(self, body: bytes, deadline: float) -> None:
        """Send a frame. deadline: by `time.monotonic`. Raises as `ask` does."""
        self._set_timeout(deadline)
        self._socket.sendall(frame(body))

    def receive(self, deadline: float) -> tuple[bytes, int | None]:
        """The next reply, and the descriptor of its file. deadline: by `time.monotonic`. Raises as `ask` does."""
        self._set_timeout(deadline)
        head, descriptors, _, _ = socket.recv_fds(self._socket, LENGTH.size, self._max_files)
        try:
            while len(head) < LENGTH.size:
                head += self._receive(LENGTH.size - len(head), deadline)
            (length,) = LENGTH.unpack(head)
            if length > MAX_REPLY:
                raise OSError(f"a reply of {length} bytes")
            body = bytearray()
            while len(body) < length:
                body += self._receive(min(BLOCK_BYTES, length - len(body)), deadline)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return bytes(body), descriptors[0] if descriptors else None

    def has_reply(self, timeout_s: float) -> bool:
        """Whether a reply begins to arrive, or the process ends, within this time. Raises EOFError after `end`."""
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise EOFError
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def _receive(self, count: int, deadline: float) -> bytes:
        self._set_timeout(deadline)
        block = self._socket.recv(count)
        if not block:
            raise EOFError
        return block

    def _set_timeout(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def end(self) -> None:
        """Kill the process. A call of `ask` in another thread raises EOFError or OSError."""
        self._process.kill()
        with suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:  # to free its memory takes the system longer
            threading.Thread(target=self._process.wait, name="child-exit", daemon=True).start()
        self._socket.close()
