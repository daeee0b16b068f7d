"""The routes about the server itself: version, load, metrics, plugins."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire import __version__
from quire.records import Registry
from quire.server.http.responses import error_responses, json_response
from quire.server.schemas.responses import EngineLoad, PluginList, Version
from quire.server.service.service import get_service

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


router = APIRouter(tags=["Server"])


@router.get("/version", response_model=None, responses={200: {"model": Version}, **error_responses(401)})
async def version() -> Response:
    """The version of Quire."""
    return json_response({"version": __version__})


@router.get("/load", response_model=None, responses={200: {"model": EngineLoad}, **error_responses(401)})
async def load(request: Request) -> Response:
    """The number of requests that are generating."""
    return json_response({"server_load": len(get_service(request).inflight)})


@router.get("/metrics", response_class=Response, responses=_TEXT)
async def metrics(request: Request) -> Response:
    """The metrics, in the text format of Prometheus."""
    service = get_service(request)
    await service.telemetry.report_finished()
    text, kind = await asyncio.to_thread(service.metrics.text, request.headers.get("accept", ""))
    return Response(text, headers={"content-type": kind})


@router.get("/plugins", response_model=None, responses={200: {"model": PluginList}, **error_responses(401)})
async def plugins(request: Request) -> Response:
    """The loaded plugins, the records they registered, and statistics of their calls."""
    service = get_service(request)
    rows = plugin_rows(service.registry, service.telemetry.plugin_calls())
    return json_response({"object": "list", "data": rows})


def plugin_rows(registry: Registry, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per plugin. calls: statistics of plugin calls from all processes."""
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
