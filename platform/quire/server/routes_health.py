"""Routes for probes: whether this process lives, whether requests are answered, whether each model is ready."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from quire.errors import HostDied
from quire.server.errors import ErrorBody, documented, error_object, error_response
from quire.server.routes_openai import json_response
from quire.server.schema_responses import NotReady, Readiness
from quire.server.service import Service

_UNAVAILABLE: dict[str, Any] = {"model": ErrorBody, "description": "They are not; the message says why."}
_NOT_READY: dict[str, Any] = {"model": NotReady, "description": "One is not; the message says why."}


def health_router(service: Service) -> APIRouter:
    """`/health` and `/ping` as vLLM has them, and one route each for probes of life and of readiness."""
    router = APIRouter(tags=["Server"])

    def unavailable() -> str | None:
        return "The server is shutting down." if service.inflight.closed else service.client.unavailable

    async def health() -> Response:
        reason = unavailable()
        return Response(status_code=200) if reason is None else error_response(HostDied(reason))

    for path, methods in (("/health", ["GET"]), ("/ping", ["GET", "POST"])):
        for method in methods:
            router.add_api_route(
                path,
                health,
                methods=[method],
                response_class=Response,
                responses={200: {"description": "Requests are answered.", "content": {}}, 503: _UNAVAILABLE},
                summary="Whether requests are answered",
                operation_id=f"{path[1:]}_{method.lower()}",
            )

    @router.get("/health/live", response_class=Response, responses={200: {"description": "It does.", "content": {}}})
    async def live() -> Response:
        """Whether the server's own process lives and its event loop turns, whatever the models do."""
        return Response(status_code=200)

    @router.get(
        "/health/ready",
        response_model=None,
        responses={200: {"model": Readiness}, **documented(404), 503: _NOT_READY},
    )
    async def ready(model: str | None = Query(None, description="Only this model.")) -> Response:
        """Whether models are ready, and which."""
        chosen = [service.models.find(model)] if model else service.models.all
        reason, running = unavailable(), {info.name for info in service.client.models()}
        states = {one.name: _state(one.info.name in running, reason) for one in chosen}
        rows = [{"id": name, "state": state} for name, state in states.items()]
        if set(states.values()) <= {"ready"} and reason is None:
            return json_response({"status": "ready", "models": rows})
        why = reason or f"Not ready: {', '.join(name for name, state in states.items() if state != 'ready')}."
        body = msgspec.json.encode({"status": "unavailable", "models": rows, **error_object(HostDied(why))})
        return Response(body, status_code=503, media_type="application/json")

    return router


def _state(running: bool, reason: str | None) -> str:
    return "ready" if running and reason is None else "unavailable"
