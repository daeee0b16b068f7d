"""One host process as the API process sees it: started, spoken to, and found dead.

It knows neither models nor requests, and does not start a second process when the first has ended.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from quire.host.protocol import FromHost, Message, decode_from_host, encode

LAST_WORDS_S = 0.1
"""How long to listen for messages still on their way after the process has ended."""

MAX_SOCKET_PATH = 90
"""Socket paths are limited to about 100 bytes on all systems."""

BRIEF_SPINS = {"GOMP_SPINCOUNT": "20000"}
"""Threads of torch's pool look for the next operation for some microseconds, then sleep. By default they spin for
milliseconds: as soon as anything else wants a core, each operation waits for a thread that is not running, and a
step takes many times as long. Sleeping at once would cost more than a third of the speed of an idle machine."""


class Connection:
    """A running host process and the socket to it. Use from one event loop."""

    def __init__(self, module: str) -> None:
        """Start `module` as a process; its socket is a file in a folder that is private to the user."""
        self.folder = _private_folder()
        path = self.folder / "host.sock"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.bind(f"ipc://{path}")
        # -P: nothing from the working directory may shadow a package.
        command = [sys.executable, "-P", "-m", module, f"ipc://{path}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=_environment())
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait, args=(loop,), name="host-exit", daemon=True).start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def how_it_ended(self) -> str:
        """The exit in words."""
        code = self._process.returncode
        return f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"

    def send(self, message: Message) -> None:
        """Send, in order, as soon as the process listens; nothing once it has ended.

        Raises BadRequest for what cannot be encoded.
        """
        data = encode(message)
        if not self._ended.is_set():
            # Not awaited: a process that dies before it connects would never take it.
            asyncio.ensure_future(self._socket.send(data)).add_done_callback(_drop_error)

    async def messages(self) -> AsyncIterator[FromHost]:
        """What the process says, until it has ended and all it said was heard."""
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            while True:
                receiving = asyncio.ensure_future(self._socket.recv())
                if not receiving.done():
                    await asyncio.wait({receiving, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():  # it has ended; its last words may still be on their way
                    await asyncio.wait({receiving}, timeout=LAST_WORDS_S)
                if not receiving.done():
                    receiving.cancel()
                    return
                yield decode_from_host(await receiving)
        finally:
            ending.cancel()

    async def wait(self, timeout_s: float) -> bool:
        """Whether the process has ended within `timeout_s`."""
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Kill the process if it still runs, and close the socket."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._socket.close()
        self._context.term()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process.wait()
        with suppress(RuntimeError):  # if the loop is closed, nobody asks any more
            loop.call_soon_threadsafe(self._ended.set)


def _environment() -> dict[str, str]:
    """What the host inherits; a user's own setting wins."""
    return {**BRIEF_SPINS, **os.environ}


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="quire-"))
    if len(str(folder)) > MAX_SOCKET_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="quire-", dir="/tmp"))
    return folder


def _drop_error(sending: asyncio.Future[Any]) -> None:
    """Whoever waits for an answer learns of a dead process in another way."""
    if not sending.cancelled():
        sending.exception()
