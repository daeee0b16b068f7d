"""The routes for probes: `/health` and `/ping` as in vLLM, liveness of this process, readiness of each model."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from quire.errors import EngineDied
from quire.server.http.errors import error_object, error_response
from quire.server.http.responses import ErrorBody, error_responses, json_response
from quire.server.schemas.responses import NotReady, Readiness
from quire.server.service.service import Service, get_service

_UNAVAILABLE: dict[str, Any] = {"model": ErrorBody, "description": "They are not; the message says why."}
_NOT_READY: dict[str, Any] = {"model": NotReady, "description": "One is not; the message says why."}


router = APIRouter(tags=["Server"])


def _unavailable_reason(service: Service) -> str | None:
    return "The server is shutting down." if service.inflight.closed else service.client.unavailable


async def health(request: Request) -> Response:
    reason = _unavailable_reason(get_service(request))
    return Response(status_code=200) if reason is None else error_response(EngineDied(reason))


for _path, _method in (("/health", "GET"), ("/ping", "GET"), ("/ping", "POST")):
    router.add_api_route(
        _path,
        health,
        methods=[_method],
        response_class=Response,
        responses={200: {"description": "Requests are answered.", "content": {}}, 503: _UNAVAILABLE},
        summary="Whether requests are answered",
        operation_id=f"{_path[1:]}_{_method.lower()}",
    )


@router.get("/health/live", response_class=Response, responses={200: {"description": "It does.", "content": {}}})
async def live() -> Response:
    """Whether the server's own process runs and its event loop answers, whatever the state of the models."""
    return Response(status_code=200)


@router.get(
    "/health/ready",
    response_model=None,
    responses={200: {"model": Readiness}, **error_responses(404), 503: _NOT_READY},
)
async def ready(request: Request, model: str | None = Query(None, description="Only this model.")) -> Response:
    """Whether all models are ready, and the state of each. Models that sleep do not count, unless all do."""
    service = get_service(request)
    unloaded = [one for one in service.residency.registrations.unloaded() if model is None or model in one.names]
    chosen = service.models.all if model is None else [] if unloaded else [service.models.find(model)]
    reason, running = _unavailable_reason(service), {info.name for info in service.client.models()}
    sleep_of = service.client.sleepers.sleep_of
    asleep = {served.name: "sleeping" for served in chosen if sleep_of(served.info.name) is not None}
    states = {served.name: _state(served.info.name in running, reason) for served in chosen} | asleep
    states |= {one.name: "unloaded" for one in unloaded}
    rows = [{"id": name, "state": state} for name, state in states.items()]
    are_all_asleep = bool(states) and len(asleep) == len(states)
    if "unavailable" not in states.values() and not are_all_asleep and reason is None:
        return json_response({"status": "ready", "models": rows})
    why = reason or f"Not ready: {', '.join(name for name, state in states.items() if state == 'unavailable')}."
    body = msgspec.json.encode({"status": "unavailable", "models": rows, **error_object(EngineDied(why))})
    return Response(body, status_code=503, media_type="application/json")


def _state(running: bool, reason: str | None) -> str:
    return "ready" if running and reason is None else "unavailable"
