"""Routes about the server itself: version, load, figures, plugins."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire import __version__
from quire.records import Registry
from quire.server.errors import documented
from quire.server.routes_openai import json_response
from quire.server.schema_responses import Load, PluginList, Version
from quire.server.service import Service

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


def admin_router(service: Service) -> APIRouter:
    """Everything that no model answers."""
    router = APIRouter(tags=["Server"])

    @router.get("/version", response_model=None, responses={200: {"model": Version}, **documented(401)})
    async def version() -> Response:
        """Which Quire this is."""
        return json_response({"version": __version__})

    @router.get("/load", response_model=None, responses={200: {"model": Load}, **documented(401)})
    async def load() -> Response:
        """How many requests are generating."""
        return json_response({"server_load": len(service.inflight)})

    @router.get("/metrics", response_class=Response, responses=_TEXT)
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus."""
        await service.telemetry.tell()
        text, kind = await asyncio.to_thread(service.metrics.text, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    @router.get("/plugins", response_model=None, responses={200: {"model": PluginList}, **documented(401)})
    async def plugins() -> Response:
        """The loaded plugins, what they brought, and how their calls went."""
        rows = plugin_rows(service.registry, service.telemetry.plugin_calls())
        return json_response({"object": "list", "data": rows})

    return router


def plugin_rows(registry: Registry, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per plugin; `calls` are counts by plugin from all processes."""
    counts = {row["plugin"]: row for row in calls}
    rows = []
    for info in registry.plugins:
        count = counts.get(info.name, {})
        rows.append(
            {
                "name": info.name,
                "distribution": info.distribution,
                "version": info.version,
                "hooks": list(info.hooks),
                "records": {hook: list(names) for hook, names in info.records.items()},
                "enabled": info.enabled,
                "error": info.error,
                "calls": count.get("calls", 0),
                "errors": count.get("errors", 0),
                "seconds": count.get("seconds", 0.0),
                "off": count.get("off", []),
                "dropped": count.get("dropped", 0),
            }
        )
    return rows
