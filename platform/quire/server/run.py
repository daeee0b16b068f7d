"""`run`: loads the models, listens, serves until told to stop, drains.

The port is taken before the models are loaded, so that a clash shows at once, and listened on after, so
that nobody connects in vain. It knows no routes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from quire.config import ModelConfig, ServerConfig
from quire.errors import ConfigError, HostDied
from quire.host.client import Client
from quire.hub import resolve_tokenizer
from quire.records import Registry
from quire.server.app import build_app
from quire.server.inflight import InFlight
from quire.server.models import Served
from quire.text.chat import ChatTemplate, read_template
from quire.text.renderer import Renderer
from quire.text.tokenizer import Tokenizer
from quire.text.tokenizer_files import DEFAULT_TEMPLATE
from quire.text.tools import choose_parser
from quire.types import ModelInfo

log = logging.getLogger("quire.server")

KEEP_ALIVE_S = 75
"""How long an idle connection stays open: longer than the usual client keeps it in its pool."""

NUM_THREADS = 32
"""For tokenizing, templates, gates and figures. They mostly wait; a few that wait long must not hold up the rest."""

GRACE_S = 5.0
"""Time for requests that were ended by a shutdown to say so."""


def run(
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    *,
    plugins: Sequence[str] | None = None,
    enable_lora: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; the exit status. Raises StartupError for what keeps it from serving.

    `plugins` and `enable_lora`: as the registry was loaded with, for the process that runs the models.
    `on_ready` gets the server's URL when requests are answered.
    """
    import uvloop

    logging.getLogger("quire").setLevel(config.log_level.upper())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(models, config, registry, plugins, enable_lora, on_ready))


async def serve(
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    plugins: Sequence[str] | None = None,
    enable_lora: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> int:
    """The same on a running event loop."""
    check_tls(config)
    listener = bind(config)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="quire"))
    with contextlib.closing(listener), _ended_by_sigterm():
        client = await Client.start(
            models,
            plugins,
            options=registry.options,
            enable_lora=enable_lora,
            log_level=config.log_level,
            max_restarts=config.max_restarts,
        )
        try:
            served = await asyncio.to_thread(text_sides, models, client.models(), config, registry)
            app = build_app(client, config, registry, served)
            server = DrainingServer(app, config)
            if on_ready is not None:
                server.on_started = lambda: on_ready(url_of(listener, config))
            await server.serve(sockets=[listener])
        finally:
            await client.close()
    return 0


def text_sides(
    configs: Sequence[ModelConfig], infos: Sequence[ModelInfo], config: ServerConfig, registry: Registry
) -> list[Served]:
    """Tokenizers and templates of the loaded models. Blocks; raises CheckpointError or ConfigError."""
    renderer = Renderer(timeout_s=config.template_timeout_s)
    return [text_side(model, info, config, registry, renderer) for model, info in zip(configs, infos, strict=True)]


def text_side(
    model: ModelConfig, info: ModelInfo, config: ServerConfig, registry: Registry, renderer: Renderer
) -> Served:
    """The same of one model."""
    tokenizer = Tokenizer.load(resolve_tokenizer(model, Path(info.folder)))
    templates: Mapping[str, str] = tokenizer.chat_templates
    if model.chat_template is not None:
        templates = {DEFAULT_TEMPLATE: read_template(model.chat_template)}
    template = None
    if templates:
        template = ChatTemplate(templates, tokenizer.special_tokens, renderer, info.modalities)
        template.check()
    parser = None
    if config.enable_auto_tool_choice or config.tool_call_parser is not None:
        parser = choose_parser(registry, config.tool_call_parser, templates.get(DEFAULT_TEMPLATE))
    return Served(
        info=info, tokenizer=tokenizer, template=template, tool_parser=parser, response_role=model.response_role
    )


def bind(config: ServerConfig) -> socket.socket:
    """A socket bound to the server's address, not yet listening; `ConfigError` if that cannot be."""
    try:
        found = socket.getaddrinfo(config.host or None, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {config.host!r} is no address to listen on: {error}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(f"Cannot listen on {config.host}:{config.port}: {error.strerror}.") from error
    return listener


def url_of(listener: socket.socket, config: ServerConfig) -> str:
    """Where clients find the server."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if config.ssl_certfile else 'http'}://{host}:{port}{config.root_path}"


def check_tls(config: ServerConfig) -> None:
    """`ConfigError` unless the TLS files can be used."""
    if config.ssl_certfile is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
        if config.ssl_ca_certs:
            context.load_verify_locations(config.ssl_ca_certs)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The TLS files cannot be used: {error}.") from error


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
