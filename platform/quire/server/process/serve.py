"""Serves HTTP: waits for the models, listens until the server is stopped, then lets running requests finish.

The socket is bound before the models load, so that a port in use is reported at once. It listens only afterwards, so
that no client connects to a server that cannot answer.
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
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from quire.engine_process.client import EngineClient
from quire.engine_process.replicas.client import ReplicatedClient
from quire.errors import EngineDied
from quire.records import Registry
from quire.server.accounting.audit import SERVER
from quire.server.app import build_app
from quire.server.changes.reload import SettingsSource
from quire.server.connections.connections import ConnectionLimits, Connections
from quire.server.connections.http_protocol import BoundedHttpProtocol
from quire.server.connections.listen import url_of
from quire.server.http.methods import allowed_methods
from quire.server.jobs.active import UNFINISHED, ActiveJobs
from quire.server.process.frontend_loader import FrontendLoader, load_frontends
from quire.server.process.registered import at_start, check_limit, registrations
from quire.server.process.shutdown import ServerShutdown, handle_signals, reload_at_hangup
from quire.server.process.started import PAGES, OnReady, StartedServer
from quire.server.service.service import Service
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig

if TYPE_CHECKING:
    from quire.server.tracing.tracing import Tracing

__all__ = ["DrainingServer", "load_frontends", "serve_until_stopped"]

log = logging.getLogger("quire.server")

NUM_THREADS = 32
"""For tokenizing, templates, gates and statistics. They mostly wait, and a few long waits must not delay the others."""

GRACE_S = 2.0
"""Time for requests that the shutdown ended to send their error."""

MAX_MESSAGE_BYTES = 8 << 20
"""Maximum size of a WebSocket message, if --max-body-bytes is not lower. The event loop unpacks it: 3 ms a MiB."""

STATUS_FAILED = 1
"""Exit status if the models could not be kept running."""


async def serve_until_stopped(
    client: EngineClient | ReplicatedClient,
    listener: socket.socket,
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    on_ready: OnReady | None = None,
    tracing: Tracing | None = None,
    defaults: ModelConfig | None = None,
    settings: SettingsSource | None = None,
) -> int:
    """Serve on a bound socket until SIGINT or SIGTERM; returns the exit status. `client` must have been launched.

    defaults: settings of models that requests load. settings: where they are read again at SIGHUP.

    After a signal the process ends within `shutdown_timeout_s` and a few seconds, even if something hangs or the caller
    does not return.
    """
    executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="quire")
    asyncio.get_running_loop().set_default_executor(executor)
    shutdown = ServerShutdown(config.shutdown_timeout_s, client.kill)
    with handle_signals(shutdown):
        try:
            server = await _load(client, models, config, registry, tracing, defaults, settings, shutdown)
            if server is None:
                return 128 + (shutdown.signal or 0)
            if on_ready is not None:
                server.on_started = lambda: on_ready(_started(server.app, url_of(listener, config)))
            gc.freeze()  # everything loaded so far stays: exclude it from collections
            watching = asyncio.create_task(_end_when_failed(client, shutdown))
            reload = partial(server.app.state.service.reload_settings, SERVER) if settings and settings.file else None
            with reload_at_hangup(reload):
                await server.serve(sockets=[listener])
            watching.cancel()
        finally:
            await client.close(shutdown_timeout_s=shutdown.left_s)
            executor.shutdown(wait=False, cancel_futures=True)
            shutdown.finish()
    return shutdown.status


async def _load(
    client: EngineClient | ReplicatedClient,
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    tracing: Tracing | None,
    defaults: ModelConfig | None,
    settings: SettingsSource | None,
    shutdown: ServerShutdown,
) -> DrainingServer | None:
    """The server, when the models are loaded; None if a signal stopped it before."""

    async def load() -> DrainingServer:
        return DrainingServer(await load_app(client, models, config, registry, tracing, defaults, settings), config)

    loading = asyncio.create_task(load())
    shutdown.stop = loading.cancel
    try:
        server = await loading
    except asyncio.CancelledError:
        if shutdown.signal is None:
            raise
        return None
    shutdown.stop = server.stop
    return server


async def load_app(
    client: EngineClient | ReplicatedClient,
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    tracing: Tracing | None = None,
    defaults: ModelConfig | None = None,
    settings: SettingsSource | None = None,
) -> FastAPI:
    """The application, when the models are loaded. Raises what loading raises."""
    frontends = FrontendLoader(config, registry, tracing.fetching if tracing else None)
    first = at_start(models)
    await asyncio.gather(client.ready(), asyncio.to_thread(frontends.prepare, first))
    served = await asyncio.to_thread(frontends.load, first, client.models())
    registered = await asyncio.to_thread(registrations, models, client.models(), config, registry)
    check_limit(registered, client.memory_limit, config)
    return build_app(client, config, registry, served, tracing, defaults, frontends, settings, registered)


def _started(app: FastAPI, url: str) -> StartedServer:
    service: Service = app.state.service
    served = service.models.all
    return StartedServer(
        url=url,
        models=tuple(one.info for one in served),
        adapters=tuple(service.adapters.ready()),
        pages=frozenset(path for path in PAGES if "GET" in allowed_methods({"type": "http", "app": app, "path": path})),
        chats=frozenset(one.name for one in served if one.template is not None),
        requires_key=bool(service.config.api_key),
    )


async def _end_when_failed(client: EngineClient | ReplicatedClient, shutdown: ServerShutdown) -> None:
    await client.failed()
    log.error("the server exits with status %d: %s", STATUS_FAILED, client.unavailable)
    shutdown.begin(STATUS_FAILED)


class DrainingServer(uvicorn.Server):
    """Lets running requests finish at shutdown; those that take longer than `shutdown_timeout_s` get an error."""

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        super().__init__(uvicorn.Config(app, **_uvicorn_settings(config, app.state.websocket_paths)))
        self.app = app
        self.on_started: Callable[[], None] | None = None
        self._inflight: ActiveJobs = app.state.service.inflight
        self._timeout_s = config.shutdown_timeout_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.on_started is not None:
            self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no new requests, wait for running ones, and fail the rest."""
        self._inflight.close()
        log.info("shutting down; %d requests are running", len(self._inflight))
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._fail_all)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _fail_all(self) -> None:
        if len(self._inflight):
            log.warning("ended %d requests that did not finish within %g s", len(self._inflight), self._timeout_s)
        self._inflight.stop_all(EngineDied(UNFINISHED))

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own handlers are not installed: `ServerShutdown` handles signals."""
        yield


def _uvicorn_settings(config: ServerConfig, websocket_paths: frozenset[str] = frozenset()) -> dict[str, Any]:
    limits = ConnectionLimits.from_config(config, websocket_paths)
    return {
        "http": partial(BoundedHttpProtocol, connections=Connections(limits)),
        "loop": "none",
        "ws": "none",  # the HTTP protocol chooses it itself
        "ws_max_size": min(config.max_body_bytes, MAX_MESSAGE_BYTES),
        "ws_per_message_deflate": False,  # a small message could unpack to one of the largest size
        "log_level": config.log_level,
        "log_config": None,  # uvicorn's records use the root handler, in our format
        "access_log": not config.disable_access_log,
        "server_header": False,
        "root_path": config.root_path,
        "timeout_graceful_shutdown": int(config.shutdown_timeout_s + GRACE_S),
        "ssl_keyfile": config.ssl_keyfile,
        "ssl_certfile": config.ssl_certfile,
        "ssl_ca_certs": config.ssl_ca_certs,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if config.ssl_ca_certs else ssl.CERT_NONE,
    }
