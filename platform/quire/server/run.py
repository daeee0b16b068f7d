"""`serve`: waits for the models, listens, serves until told to stop, drains.

The port was taken before the models began to load, so that a clash shows at once, and is listened on after, so
that nobody connects in vain. It knows no routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from quire.config import ModelConfig, ServerConfig
from quire.errors import HostDied
from quire.host.client import Client
from quire.records import Registry
from quire.server.app import build_app
from quire.server.inflight import InFlight
from quire.server.listen import url_of
from quire.server.text_sides import TextSides, text_sides

__all__ = ["DrainingServer", "serve", "text_sides"]

log = logging.getLogger("quire.server")

KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than the usual client keeps it in its pool."""

NUM_THREADS = 32
"""For tokenizing, templates, gates and figures. They mostly wait; a few that wait long must not hold up the rest."""

GRACE_S = 5.0
"""Time for requests that were ended by a shutdown to say so."""


async def serve(
    client: Client,
    listener: socket.socket,
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve on a bound socket until SIGINT or SIGTERM, with a client that was launched (`quire.server.start.run`)."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="quire"))
    with _ended_by_sigterm():
        try:
            text = TextSides(config, registry)
            await asyncio.gather(client.ready(), asyncio.to_thread(text.prepare, models))
            served = await asyncio.to_thread(text.of, models, client.models())
            app = build_app(client, config, registry, served)
            server = DrainingServer(app, config)
            if on_ready is not None:
                server.on_started = lambda: on_ready(url_of(listener, config))
            gc.freeze()  # what is there stays: the collector need not look at it again
            await server.serve(sockets=[listener])
        finally:
            await client.close()
    return 0


class DrainingServer(uvicorn.Server):
    """Finishes what is in flight before it ends; what takes longer than `shutdown_timeout_s` gets an error."""

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        super().__init__(uvicorn.Config(app, **_uvicorn_settings(config)))
        self.on_started: Callable[[], None] | None = None
        self._inflight: InFlight = app.state.service.inflight
        self._drain_s = config.shutdown_timeout_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then tell."""
        await super().startup(sockets)
        if self.on_started is not None:
            self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take in nothing new, wait, end the rest."""
        self._inflight.close()
        log.info("shutting down; %d requests are in flight", len(self._inflight))
        ending = asyncio.get_running_loop().call_later(self._drain_s, self._end_all)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    def _end_all(self) -> None:
        if len(self._inflight):
            log.warning("ending %d requests that did not finish in %g s", len(self._inflight), self._drain_s)
        self._inflight.stop_all(HostDied("The server is shutting down; the request was not finished."))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As the parent's, but a signal that was obeyed is not raised again: the exit status is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _uvicorn_settings(config: ServerConfig) -> dict[str, Any]:
    return {
        "http": "httptools",
        "loop": "none",
        "ws": "none",
        "log_level": config.log_level,
        "log_config": None,  # its records go where ours go, in the same format
        "access_log": not config.disable_access_log,
        "server_header": False,
        "root_path": config.root_path,
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": int(config.shutdown_timeout_s + GRACE_S) + 1,
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_certfile": config.ssl_certfile,
        "ssl_ca_certs": config.ssl_ca_certs,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if config.ssl_ca_certs else ssl.CERT_NONE,
    }


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """While models load, SIGTERM ends the start as an interrupt from the keyboard does."""
    task = asyncio.current_task()
    if threading.current_thread() is not threading.main_thread() or task is None:
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
