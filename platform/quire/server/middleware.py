"""The middleware of the application: keys and tenants, traces, ids of requests, sizes of bodies, other origins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from quire.server.changes.uses import MODEL_HEADER
from quire.server.http.auth import METRICS, OPEN_PATHS, APIKeyMiddleware
from quire.server.http.middleware import (
    BodyLimitMiddleware,
    PluginErrorMiddleware,
    RequestIdMiddleware,
    ResponseBlocksMiddleware,
)
from quire.server.service.service import Service
from quire.server.tenants.meter import RATE_HEADERS
from quire.server.tenants.middleware import TenantMiddleware
from quire.server.tenants.scopes import RouteScopes

if TYPE_CHECKING:
    from quire.server.tracing.tracing import Tracing

ROUTERS = "quire_routers"

EXPOSED_HEADERS = ("X-Request-Id", "Retry-After", "WWW-Authenticate", "Metadata", MODEL_HEADER, *RATE_HEADERS)
"""Response headers that scripts of other origins may read."""


def add_middleware(app: FastAPI, service: Service, open_paths: frozenset[str], tracing: Tracing | None) -> None:
    """Middleware, the innermost first. open_paths: those of plugins that need no API key."""
    config, registry, tenants = service.config, service.registry, service.tenants
    app.add_middleware(PluginErrorMiddleware, registry=registry)
    app.add_middleware(ResponseBlocksMiddleware)
    uploads = frozenset(path for record in registry.all(ROUTERS) for path in record.upload_paths)
    app.add_middleware(BodyLimitMiddleware, max_bytes=config.max_body_bytes, upload_paths=uploads)
    if tenants is not None:
        scopes = RouteScopes(record.scopes for record in registry.all(ROUTERS))
        app.add_middleware(TenantMiddleware, tenants=tenants, scopes=scopes)
    if config.requires_key or config.admin_api_key:
        paths = open_paths | (OPEN_PATHS - {METRICS} if config.metrics_require_key else OPEN_PATHS)
        keys: Mapping[str, Any] = {"keys": config.api_key, "admin_keys": config.admin_api_key}
        find_caller = tenants.find if tenants is not None else None
        app.add_middleware(APIKeyMiddleware, **keys, open_paths=paths, find_caller=find_caller)
    if tracing is not None:
        from quire.server.tracing.middleware import TracingMiddleware

        app.add_middleware(TracingMiddleware, tracing=tracing)
    if config.enable_request_id_headers or config.log_format == "json":
        app.add_middleware(RequestIdMiddleware, sends=config.enable_request_id_headers)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=list(config.allowed_methods),
            allow_headers=list(config.allowed_headers),
            expose_headers=EXPOSED_HEADERS,
            allow_credentials=config.allow_credentials,
        )
