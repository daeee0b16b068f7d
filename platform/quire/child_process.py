"""ChildProcess: a Python process that answers questions, one at a time, and that can be ended at any moment.

Questions and answers are frames: eight bytes that say how long the body is, and the body. An answer may bring one open
file along. The child finds its end of the connection as standard input and standard output.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

LENGTH = struct.Struct(">Q")
MAX_ANSWER = 1 << 30
PIECE = 1 << 20
END_S = 2.0
"""How long the end of a killed process is waited for: one that the system does not get to end is left behind."""

KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "TZ", "LANG", "LC_ALL", "SYSTEMROOT")
"""What of the environment a child needs that reads what others wrote; keys and tokens stay outside."""


def bare_environment() -> dict[str, str]:
    """An environment without secrets, in which this process's modules are found."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))}


def frame(body: bytes) -> bytes:
    """Bytes with their length before them."""
    return LENGTH.pack(len(body)) + body


class ChildProcess:
    """One process; one thread at a time may use it, and any may end it.

    arguments: what follows the interpreter on the command line.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                env=dict(environment),
                process_group=0,  # Ctrl-C in the terminal is the server's affair
            )

    def ask(self, question: bytes, timeout_s: float) -> tuple[bytes, int | None]:
        """The answer to a question, and the descriptor that came with it.

        Raises TimeoutError, EOFError or OSError when there is none; then the process is of no use any more.
        """
        deadline = time.monotonic() + timeout_s
        self._allow(deadline)
        self._socket.sendall(frame(question))
        return self.answer(deadline)

    def answer(self, deadline: float) -> tuple[bytes, int | None]:
        """The next answer, by `time.monotonic`; raises as `ask` does."""
        self._allow(deadline)
        head, descriptors, _, _ = socket.recv_fds(self._socket, LENGTH.size, 1)
        try:
            while len(head) < LENGTH.size:
                head += self._receive(LENGTH.size - len(head), deadline)
            (length,) = LENGTH.unpack(head)
            if length > MAX_ANSWER:
                raise OSError(f"an answer of {length} bytes")
            body = bytearray()
            while len(body) < length:
                body += self._receive(min(PIECE, length - len(body)), deadline)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return bytes(body), descriptors[0] if descriptors else None

    def _receive(self, count: int, deadline: float) -> bytes:
        self._allow(deadline)
        piece = self._socket.recv(count)
        if not piece:
            raise EOFError
        return piece

    def _allow(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def end(self) -> None:
        """Kill it. A call of `ask` that is under way in another thread raises EOFError or OSError."""
        self._process.kill()
        with suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._socket.close()
