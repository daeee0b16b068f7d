"""One engine process, seen from the API process: exchange messages with it, notice its exit.

A connection is used for one process only; `quire.engine_process.supervisor` starts the next one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from quire.engine_process.wire.message import WireMessage
from quire.engine_process.wire.protocol import FromEngine, decode_from_engine, encode
from quire.engine_process.wire.spawn import SpawnedProcess
from quire.engine_process.wire.transport import FrameDecoder, encode_frame

EXIT_DRAIN_S = 0.1
"""The process exits and its socket closes in either order; after the first, wait this long for the second."""


class EngineConnection(asyncio.Protocol):
    """A running engine process and the socket to it."""

    def __init__(self, spawned: SpawnedProcess) -> None:
        """Needs no event loop: the socket buffers messages sent before `listen`."""
        self._spawned, self._socket, self._process = spawned, spawned.socket, spawned.process
        self._kill_reason: str | None = None
        self._frames = FrameDecoder()
        self._ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._on_message: Callable[[FromEngine], None] | None = None
        self._closed: asyncio.Future[None] | None = None
        """Done when the socket is closed, or failed with the error that ended reading."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_description(self) -> str:
        """How the process ended, as the end of a sentence."""
        if self._kill_reason is not None:
            return self._kill_reason
        code = self._process.returncode
        if code is None:
            return "stopped answering"
        return f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"

    def send(self, message: WireMessage) -> None:
        """Send in order; dropped once the process has ended. Raises BadRequest for a value that cannot be encoded."""
        data = encode_frame(encode(message))
        if self._transport is not None:
            if not self._transport.is_closing():
                self._transport.write(data)
            return
        with suppress(OSError):  # pending calls fail when `listen` returns
            self._socket.sendall(data)

    async def listen(self, on_message: Callable[[FromEngine], None]) -> None:
        """Call `on_message` for every message of the process; returns when it has ended. May be called once.

        Raises what `on_message` raises, or a decoding error.
        """
        loop = asyncio.get_running_loop()
        self._on_message, self._closed = on_message, loop.create_future()
        threading.Thread(target=self._wait, args=(loop,), name="engine-exit", daemon=True).start()
        self._socket.setblocking(False)
        self._transport, _ = await loop.create_unix_connection(lambda: self, sock=self._socket)
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((self._closed, ended), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((self._closed, ended), timeout=EXIT_DRAIN_S)
        finally:
            ended.cancel()
        if self._closed.done():
            self._closed.result()

    def data_received(self, data: bytes) -> None:
        if self._closed is None or self._on_message is None or self._closed.done():
            return
        try:
            for frame in self._frames.feed(data):
                self._on_message(decode_from_engine(frame))
        except Exception as error:
            self._closed.set_exception(error)

    def connection_lost(self, _: Exception | None) -> None:
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Whether the process ends within `timeout_s`. Needs `listen` to be running."""
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def kill(self, reason: str | None = None) -> None:
        """Kill the process. `reason`: what `exit_description` then returns."""
        self._kill_reason = self._kill_reason or reason
        self._process.kill()

    def close(self) -> None:
        """Kill the process if it still runs, and close the socket."""
        self._spawned.end()
        if self._transport is not None:
            self._transport.abort()
        else:
            self._socket.close()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._process.wait()
        with suppress(RuntimeError):  # the event loop is closed, so no task waits for the exit
            loop.call_soon_threadsafe(self._ended.set)
