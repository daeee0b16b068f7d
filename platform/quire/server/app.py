"""Builds the FastAPI application: the service, the routers of the server and of plugins, and middleware."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from re import Pattern
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from starlette.routing import Match, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from quire import __version__
from quire.errors import EngineDied, PluginError, QuireError
from quire.hooks.adapter_resolver import AdapterResolver
from quire.hooks.call_stats import call_plugin
from quire.hub import adapter_cache
from quire.records import Registry, Router
from quire.server.accounting import routes as accounting_routes
from quire.server.accounting.build import build_accounting
from quire.server.admin import routes_adapters, routes_admin, routes_health, routes_models, routes_text
from quire.server.audio import routes as speech_routes
from quire.server.changes import routes as change_routes
from quire.server.changes.control import RunningModels
from quire.server.changes.reload import Reload, SettingsSource
from quire.server.changes.uses import MODEL_USE, ModelUse
from quire.server.http.api_pages import PAGES, add_api_pages, installed_assets
from quire.server.http.body import Bodies
from quire.server.http.errors import ERROR_BODIES, error_response, install_handlers
from quire.server.http.methods import install_methods
from quire.server.http.openapi import install_openapi
from quire.server.http.sse import RAW_SEND
from quire.server.jobs.active import UNFINISHED, ActiveJobs
from quire.server.metrics.metrics import Metrics
from quire.server.metrics.telemetry import Telemetry
from quire.server.metrics.throughput_log import ThroughputLog
from quire.server.middleware import ROUTERS, add_middleware
from quire.server.openai import native, routes as openai_routes
from quire.server.pooling import routes as pooling_routes
from quire.server.process.frontend_loader import FrontendLoader
from quire.server.process.workers import WorkerPools
from quire.server.request_bodies import BODIES
from quire.server.residency.build import build_residency
from quire.server.residency.leases import LEASES, Leases
from quire.server.residency.registration import Registration
from quire.server.routers.context import router_context
from quire.server.service.adapters import AdapterService, describe_roots
from quire.server.service.client_protocol import ClientProtocol
from quire.server.service.gates import Gates
from quire.server.service.model_loads import ModelLoads
from quire.server.service.models import ModelDirectory, ServedModel
from quire.server.service.new_models import NewModels
from quire.server.service.request_fields import RequestFields
from quire.server.service.service import Service
from quire.server.tenants.tenants import Tenants, watched
from quire.server.tenants.ticket import may_use_adapter, may_use_model
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig

if TYPE_CHECKING:
    from quire.server.tracing.tracing import Tracing

log = logging.getLogger("quire.server")

ADAPTER_RUNTIMES = "quire_adapter_runtimes"


class _App(FastAPI):
    """Gives streams direct access to the server's `send`, and answers requests that a shutdown cancels."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP exchange, or the lifespan."""
        scope[RAW_SEND] = send
        use = ModelUse(self.state.service.models.uses)
        if scope["type"] == "http":
            scope[MODEL_USE], send = use, use.watch(send)
        try:
            with Leases() as scope[LEASES]:
                await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            if scope["type"] != "http" or not self.state.service.inflight.closed:
                raise
            with suppress(RuntimeError):  # a response that has begun cannot be replaced
                await error_response(EngineDied(UNFINISHED))(scope, receive, send)
        finally:
            use.end()
            del scope[RAW_SEND]  # refers to what has the scope: no work for the garbage collector


def build_service(
    client: ClientProtocol,
    config: ServerConfig,
    registry: Registry,
    models: Sequence[ServedModel],
    tracing: Tracing | None = None,
    defaults: ModelConfig | None = None,
    frontends: FrontendLoader | None = None,
    settings: SettingsSource | None = None,
    registered: Sequence[Registration] = (),
) -> Service:
    """Build the `Service` that the routes use. Builds gates and exporters of plugins, and raises what they raise."""
    infos = [served.info for served in models]
    metrics = Metrics(infos, config.metrics_prefix, client.sleepers.sleep_of)
    tenants = Tenants(Path(config.key_file)) if config.key_file else None
    served_models = ModelDirectory(models, lambda name: client.sleepers.sleep_of(name) is not None, may_use_model)
    sources = AdapterResolver(registry, adapter_cache(config.lora_cache_dir), config.adapter_roots)
    enabled = bool(registry.by_hook(ADAPTER_RUNTIMES))
    if enabled:
        log.info("requests may load adapters from %s", describe_roots(config))
    pools = WorkerPools()
    throughput = None if config.disable_log_stats else ThroughputLog()
    accounting = build_accounting(config, registry)
    telemetry = Telemetry(client, registry, metrics, throughput, tracing=tracing, usage=accounting.ledger)
    adapters = AdapterService(served_models, client.adapters, sources, enabled, may_use_adapter)
    new_models = NewModels(server=config, defaults=defaults or ModelConfig(), registry=registry)
    frontends = frontends or FrontendLoader(config, registry, tracing.fetching if tracing else None)
    inflight, loads = ActiveJobs(), ModelLoads(client, served_models, new_models, frontends, adapters.has, telemetry)
    residency, client_loads = build_residency(
        client, config, served_models, loads, new_models, metrics.registry, registered, inflight
    )
    control = RunningModels(
        served_models,
        loads,
        client_loads,
        new_models,
        client.sleepers,
        adapters.has,
        lambda: client.unavailable is not None,
    )
    control.set_first_aliases(config.model_aliases)
    return Service(
        config=config,
        client=client,
        registry=registry,
        models=served_models,
        request_fields=RequestFields(registry),
        gates=Gates(registry, config.gate_threads, config.gate_timeout_s),
        metrics=metrics,
        telemetry=telemetry,
        accounting=accounting,
        inflight=inflight,
        adapters=adapters,
        model_loads=loads,
        control=control,
        reload=Reload(settings, served_models, client_loads, new_models, control),
        residency=residency,
        bodies=Bodies(config.max_body_bytes, config.max_json_values, pools.bodies),
        pools=pools,
        tenants=tenants,
    )


def build_app(
    client: ClientProtocol,
    config: ServerConfig,
    registry: Registry,
    models: Sequence[ServedModel],
    tracing: Tracing | None = None,
    defaults: ModelConfig | None = None,
    frontends: FrontendLoader | None = None,
    settings: SettingsSource | None = None,
    registered: Sequence[Registration] = (),
) -> FastAPI:
    """Build the application; `app.state.service` is its `Service`. The caller closes `client`.

    defaults: settings of models that are loaded later; frontends: loads their front ends. settings: where they can be
    read again. registered: the models of the settings, loaded or not. Raises PluginError if a router of a plugin
    clashes with an existing route.
    """
    service = build_service(client, config, registry, models, tracing, defaults, frontends, settings, registered)
    has_docs = not config.disable_fastapi_docs
    app = _App(
        title="Quire",
        version=__version__,
        servers=[{"url": config.root_path}] if config.root_path else None,
        root_path_in_servers=False,
        lifespan=_lifespan(service),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.service = service
    install_handlers(app)
    install_methods(app)
    open_paths = _include_routers(app, service, registry)
    install_openapi(app, [*BODIES, *(body for record in registry.all(ROUTERS) for body in record.body_models())])
    if has_docs:
        add_api_pages(app, installed_assets())
    add_middleware(app, service, open_paths, tracing)
    return app


def _lifespan(service: Service) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for route in app.routes:  # FastAPI prepares its routes when the first request is matched: 0.1 s
            route.matches({"type": "http", "method": "GET", "path": "/"})
        service.telemetry.start()
        service.residency.wake()
        try:
            async with watched(service.tenants):
                yield
        finally:
            await service.residency.stop()
            spent_s = time.monotonic() - (service.inflight.closed_at or time.monotonic())
            await service.telemetry.stop(service.config.shutdown_timeout_s - spent_s)
            service.pools.close()

    return lifespan


def _include_routers(app: FastAPI, service: Service, registry: Registry) -> frozenset[str]:
    """Mount all routers; return the paths of plugins that need no API key."""
    open_paths: set[str] = set()
    taken: dict[tuple[str, str], str] = {}
    for path in PAGES:
        taken[path, "GET"] = "the server"
    for router in _built_in_routers(service.config):
        _include(app, router, "the server", taken)
    error_bodies: list[tuple[Pattern[str], Callable[[QuireError, str | None], Mapping[str, Any]]]] = []
    setattr(app.state, ERROR_BODIES, error_bodies)
    websocket_paths: set[str] = set()
    for record in registry.all(ROUTERS):
        if record.ui and not service.config.ui:
            continue
        plugin = registry.plugin_of(ROUTERS, record.name)
        router = call_plugin(registry, plugin, record.build, router_context(app, service, plugin))
        if not isinstance(router, APIRouter):
            raise PluginError(
                f"Plugin {plugin!r}: the router {record.name!r} must build an APIRouter; got {router!r:.80}."
            )
        _include(app, router, f"plugin {plugin!r}", taken)
        if record.error_body is not None:
            error_bodies += [
                (route.path_regex, record.error_body) for route in router.routes if isinstance(route, Route)
            ]
        websocket_paths.update(route.path for route in router.routes if isinstance(route, WebSocketRoute))
        open_paths.update(_checked_open_paths(record, router, plugin))
    app.state.websocket_paths = frozenset(websocket_paths)
    return frozenset(open_paths)


def _checked_open_paths(record: Router, router: APIRouter, plugin: str) -> tuple[str, ...]:
    for path in record.open_paths:
        scope = {"type": "http", "method": "GET", "path": path}
        if not any(route.matches(scope)[0] is Match.FULL for route in router.routes):
            raise PluginError(
                f"Plugin {plugin!r}: the router {record.name!r} opens {path}, but has no route GET {path}."
            )
    return record.open_paths


def _built_in_routers(config: ServerConfig) -> Iterator[APIRouter]:
    yield from (openai_routes.router, pooling_routes.router, speech_routes.router, routes_adapters.router)
    yield from (routes_models.router, change_routes.router, routes_text.router)
    if config.enable_tokenizer_info_endpoint:
        yield routes_text.info_router
    yield from (native.router, routes_admin.router, routes_health.router, accounting_routes.router)


def _include(app: FastAPI, router: APIRouter, owner: str, taken: dict[tuple[str, str], str]) -> None:
    for route in router.routes:
        path = getattr(route, "path", "")
        for method in getattr(route, "methods", None) or {"*"}:
            other = taken.get((path, method))
            if other is not None and other != owner:
                raise PluginError(f"The route {method} {path} is offered by {other} and by {owner}.")
            taken[path, method] = owner
    app.include_router(router)
