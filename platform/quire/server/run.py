"""`serve`: waits for the models, listens, serves until told to stop, drains.

The port was taken before the models began to load, so that a clash shows at once, and is listened on after, so
that nobody connects in vain. It knows no routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from quire.config import ModelConfig
from quire.errors import HostDied
from quire.host.client import Client
from quire.records import Registry
from quire.server.app import build_app
from quire.server.connections import ConnectionLimits, Connections
from quire.server.ending import Ending, ended_by_signals
from quire.server.http_protocol import BoundedHttp
from quire.server.inflight import UNFINISHED, InFlight
from quire.server.listen import url_of
from quire.server.text_sides import TextSides, text_sides
from quire.server_config import ServerConfig

__all__ = ["DrainingServer", "serve", "text_sides"]

log = logging.getLogger("quire.server")

NUM_THREADS = 32
"""For tokenizing, templates, gates and figures. They mostly wait; a few that wait long must not hold up the rest."""

GRACE_S = 2.0
"""Time for requests that were ended by a shutdown to say so."""

STATUS_FAILED = 1
"""Exit status of a server whose models cannot be kept running."""


async def serve(
    client: Client,
    listener: socket.socket,
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve on a bound socket until SIGINT or SIGTERM, with a client that was launched (`quire.server.start.run`).

    Gives the exit status. After such a signal the process ends within `shutdown_timeout_s` and a few seconds, also if
    something of it hangs, or the caller does not return.
    """
    executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="quire")
    asyncio.get_running_loop().set_default_executor(executor)
    ending = Ending(config.shutdown_timeout_s, client.kill)
    with ended_by_signals(ending):
        try:
            server = await _load(client, models, config, registry, ending)
            if server is None:
                return 128 + (ending.signal or 0)
            if on_ready is not None:
                server.on_started = lambda: on_ready(url_of(listener, config))
            gc.freeze()  # what is there stays: the collector need not look at it again
            watching = asyncio.create_task(_end_when_failed(client, ending))
            await server.serve(sockets=[listener])
            watching.cancel()
        finally:
            await client.close(goodbye_s=ending.left_s)
            executor.shutdown(wait=False, cancel_futures=True)
            ending.finish()
    return ending.status


async def _load(
    client: Client, models: Sequence[ModelConfig], config: ServerConfig, registry: Registry, ending: Ending
) -> DrainingServer | None:
    """The server for the models, when they are loaded; None if it was told to end meanwhile."""

    async def load() -> DrainingServer:
        text = TextSides(config, registry)
        await asyncio.gather(client.ready(), asyncio.to_thread(text.prepare, models))
        served = await asyncio.to_thread(text.of, models, client.models())
        return DrainingServer(build_app(client, config, registry, served), config)

    loading = asyncio.create_task(load())
    ending.stop = loading.cancel
    try:
        server = await loading
    except asyncio.CancelledError:
        if ending.signal is None:
            raise
        return None
    ending.stop = server.stop
    return server


async def _end_when_failed(client: Client, ending: Ending) -> None:
    await client.failed()
    log.error("the server ends with status %d: %s", STATUS_FAILED, client.unavailable)
    ending.begin(STATUS_FAILED)


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
        self._inflight.stop_all(HostDied(UNFINISHED))

    def stop(self) -> None:
        """Begin to end."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are `Ending`'s affair."""
        yield


def _uvicorn_settings(config: ServerConfig) -> dict[str, Any]:
    return {
        "http": partial(BoundedHttp, connections_open=Connections(ConnectionLimits.of(config))),
        "loop": "none",
        "ws": "none",
        "log_level": config.log_level,
        "log_config": None,  # its records go where ours go, in the same format
        "access_log": not config.disable_access_log,
        "server_header": False,
        "root_path": config.root_path,
        "timeout_graceful_shutdown": int(config.shutdown_timeout_s + GRACE_S),
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_certfile": config.ssl_certfile,
        "ssl_ca_certs": config.ssl_ca_certs,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if config.ssl_ca_certs else ssl.CERT_NONE,
    }
