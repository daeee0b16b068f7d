"""One host process as the API process sees it: started, spoken to, and found dead.

It knows neither models nor requests, and does not start a second process when the first has ended.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import zmq
import zmq.asyncio

from quire.host.protocol import FromHost, Message, decode_from_host, encode

LAST_WORDS_MS = 100
"""How long to listen for messages still on their way after the process has ended."""


class Connection:
    """A running host process and the socket to it. Use from one event loop."""

    def __init__(self, folder: Path, number: int) -> None:
        """Start a process; its socket is a file in `folder`, which must be private to the user."""
        path = folder / f"{number}.sock"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.bind(f"ipc://{path}")
        # -P: nothing from the working directory may shadow a package.
        command = [sys.executable, "-P", "-m", "quire.host.process", f"ipc://{path}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
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

    async def send(self, message: Message) -> None:
        """Send; silently nothing once the process has ended. Raises BadRequest for what cannot be encoded."""
        data = encode(message)
        if not self._ended.is_set():
            try:
                await self._socket.send(data)
            except zmq.ZMQError:
                pass  # it ended meanwhile

    async def receive(self) -> FromHost | None:
        """The next message; None when the process has ended and all it said was heard."""
        if not self._ended.is_set():
            receiving = asyncio.ensure_future(self._socket.poll())
            ending = asyncio.ensure_future(self._ended.wait())
            try:
                await asyncio.wait({receiving, ending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                receiving.cancel()
                ending.cancel()
        if self._ended.is_set() and not await self._socket.poll(LAST_WORDS_MS):
            return None
        return decode_from_host(await self._socket.recv())

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

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process.wait()
        try:
            loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:
            pass  # the loop is closed: nobody asks any more
