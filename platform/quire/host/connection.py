"""One host process as the API process sees it: started, spoken to, and found dead.

It knows neither models nor requests, and does not start a second process when the first has ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from quire.host.frames import Frames, framed
from quire.host.protocol import FromHost, Message, decode_from_host, encode
from quire.host.settings import IGNORED_SIGNALS

LAST_WORDS_S = 0.1
"""How long an end is waited for after the other: that of the process, and that of what it said."""

CLOSE_S = 2.0
"""How long a killed process may take to go before it is left to itself."""

BRIEF_SPINS = {"GOMP_SPINCOUNT": "20000"}
"""Threads of torch's pool look for the next operation for some microseconds, then sleep. By default they spin for
milliseconds: as soon as anything else wants a core, each operation waits for a thread that is not running, and a
step takes many times as long. Sleeping at once would cost more than a third of the speed of an idle machine."""


class Connection(asyncio.Protocol):
    """A running host process and the socket to it, which nobody else can reach: it has no name."""

    def __init__(self, module: str) -> None:
        """Start `module` as a process. Needs no event loop: messages sent before `listen` wait in the socket."""
        self._socket, theirs = socket.socketpair()
        number = theirs.fileno()
        with theirs:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)  # of this thread, and inherited
            try:
                # -P: nothing from the working directory may shadow a package.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(number)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(number,),
                    start_new_session=True,
                    env=_environment(),
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._killed_for: str | None = None
        self._frames = Frames()
        self._ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._on_message: Callable[[FromHost], None] | None = None
        self._heard: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def cpu_s(self) -> float | None:
        """Processor time that the process has used; None where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None

    @property
    def how_it_ended(self) -> str:
        """The exit in words."""
        if self._killed_for is not None:
            return self._killed_for
        code = self._process.returncode
        if code is None:
            return "stopped answering"
        return f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"

    def send(self, message: Message) -> None:
        """Send, in order; nothing once the process has ended. Raises BadRequest for what cannot be encoded."""
        data = framed(encode(message))
        if self._transport is not None:
            if not self._transport.is_closing():
                self._transport.write(data)
            return
        with suppress(OSError):  # whoever waits for an answer learns of a dead process in another way
            self._socket.sendall(data)

    async def listen(self, on_message: Callable[[FromHost], None]) -> None:
        """Call `on_message` for all that the process says; returns when it has ended. Once only.

        Raises what `on_message` raised, or what is wrong with a message that cannot be read.
        """
        loop = asyncio.get_running_loop()
        self._on_message, self._heard = on_message, loop.create_future()
        threading.Thread(target=self._wait, args=(loop,), name="host-exit", daemon=True).start()
        self._socket.setblocking(False)
        self._transport, _ = await loop.create_unix_connection(lambda: self, sock=self._socket)
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((self._heard, ended), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((self._heard, ended), timeout=LAST_WORDS_S)
        finally:
            ended.cancel()
        if self._heard.done():
            self._heard.result()

    def data_received(self, data: bytes) -> None:
        """Of the socket: bytes have come."""
        if self._heard is None or self._on_message is None or self._heard.done():
            return
        try:
            for frame in self._frames.feed(data):
                self._on_message(decode_from_host(frame))
        except Exception as error:
            self._heard.set_exception(error)

    def connection_lost(self, _: Exception | None) -> None:
        """Of the socket: the process has closed it, or we have."""
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Whether the process that is listened to has ended within `timeout_s`."""
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def kill(self, how: str | None = None) -> None:
        """End the process at once. `how`: the exit in words."""
        self._killed_for = self._killed_for or how
        self._process.kill()

    def close(self) -> None:
        """Kill the process if it still runs, and close the socket."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # the system may take its time to free what it had
            self._process.wait(CLOSE_S)
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket.close()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process.wait()
        with suppress(RuntimeError):  # if the loop is closed, nobody asks any more
            loop.call_soon_threadsafe(self._ended.set)


def _environment() -> dict[str, str]:
    """What the host inherits; a user's own setting wins."""
    return {**BRIEF_SPINS, **os.environ}
