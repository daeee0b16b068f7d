"""`build_app`: puts routes, middleware and plugin routers together. It knows no endpoint's business."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from quire import __version__
from quire.adapter_sources import AdapterSources
from quire.counting import call_plugin
from quire.errors import HostDied, PluginError
from quire.hub import adapter_cache
from quire.records import Registry
from quire.server.adapters import ServedAdapters
from quire.server.api_pages import PAGES, add_api_pages, installed_assets
from quire.server.auth import METRICS, OPEN_PATHS, RequireKey
from quire.server.body import Bodies, with_bodies
from quire.server.engines import Client
from quire.server.errors import error_response, install_handlers
from quire.server.gates import Gates
from quire.server.inflight import UNFINISHED, InFlight
from quire.server.limits import BodyLimit
from quire.server.methods import install_methods
from quire.server.metrics import Metrics
from quire.server.models import Served, ServedModels
from quire.server.params import FieldRules
from quire.server.plugin_routes import NamePlugin
from quire.server.request_ids import EchoRequestId
from quire.server.routes_adapters import adapters_router
from quire.server.routes_admin import admin_router
from quire.server.routes_health import health_router
from quire.server.routes_native import native_router
from quire.server.routes_openai import openai_router
from quire.server.routes_pooling import POOLING_BODIES, pooling_router
from quire.server.routes_speech import SPEECH_BODIES, speech_router
from quire.server.routes_text import text_router
from quire.server.schema_adapters import LoadAdapterRequest, UnloadAdapterRequest
from quire.server.schema_requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerateRequest,
    TokenizeRequest,
)
from quire.server.service import Service
from quire.server.sse import DIRECT
from quire.server.telemetry import Telemetry
from quire.server.throughput_log import ThroughputLog
from quire.server.workers import Pools
from quire.server_config import ServerConfig

log = logging.getLogger("quire.server")

EXPOSED_HEADERS = ("X-Request-Id", "Retry-After", "WWW-Authenticate", "Metadata")
"""Headers of answers that scripts of other origins may read."""

ROUTERS = "quire_routers"
ADAPTER_RUNTIMES = "quire_adapter_runtimes"
BODIES = (
    CompletionRequest,
    ChatRequest,
    TokenizeRequest,
    DetokenizeRequest,
    GenerateRequest,
    LoadAdapterRequest,
    UnloadAdapterRequest,
    *POOLING_BODIES,
    *SPEECH_BODIES,
)


class _App(FastAPI):
    """Remembers the server's own way to send, for streams, and answers what is cancelled by a shutdown."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP exchange, or the lifespan."""
        scope[DIRECT] = send
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            if scope["type"] != "http" or not self.state.service.inflight.closed:
                raise
            with suppress(RuntimeError):  # if an answer has begun, it stays cut off
                await error_response(HostDied(UNFINISHED))(scope, receive, send)


def build_service(client: Client, config: ServerConfig, registry: Registry, models: Sequence[Served]) -> Service:
    """The parts behind the routes. Builds gates and exporters of plugins; raises what they raise."""
    infos = [served.info for served in models]
    metrics = Metrics(infos, config.metrics_prefix)
    served_models = ServedModels(models)
    sources = AdapterSources(registry, adapter_cache(config.lora_cache_dir), config.adapter_roots)
    enabled = bool(registry.of(ADAPTER_RUNTIMES))
    if enabled:
        log.info("Requests may load adapters from %s", _where_from(config))
    pools = Pools()
    return Service(
        config=config,
        client=client,
        registry=registry,
        models=served_models,
        rules=FieldRules(registry),
        gates=Gates(registry, config.gate_threads, config.gate_timeout_s),
        metrics=metrics,
        telemetry=Telemetry(client, registry, metrics, None if config.disable_log_stats else ThroughputLog()),
        inflight=InFlight(),
        adapters=ServedAdapters(served_models, client.adapters, sources, enabled),
        bodies=Bodies(config.max_body_bytes, config.max_json_values, pools.bodies),
        pools=pools,
    )


def _where_from(config: ServerConfig) -> str:
    if config.adapter_roots is None:
        return "any folder of this machine"
    if not config.adapter_roots:
        return "no folder: the server is reached from other machines; see --lora-root and --admin-api-key"
    return ", ".join(config.adapter_roots)


def build_app(client: Client, config: ServerConfig, registry: Registry, models: Sequence[Served]) -> FastAPI:
    """The application. `app.state.service` holds what is behind it; closing `client` is the caller's.

    Raises PluginError when a plugin's router clashes with a path that is taken.
    """
    service = build_service(client, config, registry, models)
    docs = not config.disable_fastapi_docs
    app = _App(
        title="Quire",
        version=__version__,
        servers=[{"url": config.root_path}] if config.root_path else None,
        root_path_in_servers=False,
        lifespan=_lifespan(service),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if docs else None,
    )
    app.state.service = service
    install_handlers(app)
    install_methods(app)
    _mount(app, service, registry)
    _describe(app)
    if docs:
        add_api_pages(app, installed_assets())
    _guard(app, config, registry)
    return app


def _lifespan(service: Service) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.telemetry.start()
        try:
            yield
        finally:
            spent_s = time.monotonic() - (service.inflight.closed_at or time.monotonic())
            await service.telemetry.stop(service.config.shutdown_timeout_s - spent_s)
            service.pools.close()

    return lifespan


def _mount(app: FastAPI, service: Service, registry: Registry) -> None:
    taken: dict[tuple[str, str], str] = {}
    for path in (*PAGES, "/openapi.json"):
        taken[path, "GET"] = "the server"
    built_in = (
        openai_router,
        pooling_router,
        speech_router,
        adapters_router,
        text_router,
        native_router,
        admin_router,
        health_router,
    )
    for build in built_in:
        _include(app, build(service), "the server", taken)
    for record in registry.all(ROUTERS):
        plugin = registry.plugin_of(ROUTERS, record.name)
        router = call_plugin(registry, plugin, record.build, service)
        if not isinstance(router, APIRouter):
            raise PluginError(
                f"Plugin {plugin!r}: the router {record.name!r} must build an APIRouter; got {router!r:.80}."
            )
        _include(app, router, f"plugin {plugin!r}", taken)


def _include(app: FastAPI, router: APIRouter, owner: str, taken: dict[tuple[str, str], str]) -> None:
    for route in router.routes:
        path = getattr(route, "path", "")
        for method in getattr(route, "methods", None) or {"*"}:
            other = taken.get((path, method))
            if other is not None and other != owner:
                raise PluginError(f"The route {method} {path} is offered by {other} and by {owner}.")
            taken[path, method] = owner
    app.include_router(router)


def _describe(app: FastAPI) -> None:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes, servers=app.servers or None)
            app.openapi_schema = _without_422(with_bodies(schema, BODIES))
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _without_422(schema: dict[str, Any]) -> dict[str, Any]:
    """FastAPI documents its own validation errors; here they are 400s in the error shape."""
    for operations in schema.get("paths", {}).values():
        for operation in operations.values():
            documented = operation.get("responses", {}).get("422", {})
            if "HTTPValidationError" in str(documented):
                del operation["responses"]["422"]
    return schema


def _guard(app: FastAPI, config: ServerConfig, registry: Registry) -> None:
    """Middleware, the innermost first."""
    app.add_middleware(NamePlugin, registry=registry)
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    if config.api_key or config.admin_api_key:
        paths = OPEN_PATHS - {METRICS} if config.metrics_require_key else OPEN_PATHS
        app.add_middleware(RequireKey, keys=config.api_key, admin_keys=config.admin_api_key, open_paths=paths)
    if config.enable_request_id_headers:
        app.add_middleware(EchoRequestId)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=list(config.allowed_methods),
            allow_headers=list(config.allowed_headers),
            expose_headers=EXPOSED_HEADERS,
            allow_credentials=config.allow_credentials,
        )
