"""The routes that put models to sleep and wake them, and give names to models; the first three are vLLM's."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from quire.errors import BadRequest
from quire.server.accounting.records import tenant_of
from quire.server.changes.aliases import AliasTarget, ModelAlias
from quire.server.changes.schemas import (
    Alias,
    AliasList,
    Awake,
    DeletedAlias,
    IsSleeping,
    Reloaded,
    SetAliasRequest,
    Sleeping,
)
from quire.server.http.body import validate
from quire.server.http.responses import error_responses, json_response
from quire.server.schemas.models import LoadModelRequest, UnloadModelRequest
from quire.server.service.service import Service, client_identity, get_service
from quire.types.request_model import json_body

router = APIRouter(tags=["Models"])

CHANGE_BODIES = (LoadModelRequest, UnloadModelRequest, SetAliasRequest)
"""Bodies of all routes that change models, for the OpenAPI document."""

ONE_MODEL = Query(None, description="Only this model; all models without it.", max_length=512)


@router.post(
    "/sleep",
    response_model=None,
    responses={200: {"model": Sleeping}, **error_responses(400, 401, 404, 503)},
    summary="Free the KV cache of models, at level 2 their weights too",
)
async def sleep(
    request: Request,
    level: int = Query(1, description="1: weights stay in host memory; 2: they are freed."),
    mode: str = Query("abort", description="abort: end running requests; wait: let them finish.", max_length=50),
    model: str | None = ONE_MODEL,
) -> Response:
    service = get_service(request)
    details = {"level": level, "mode": mode}
    with service.audited(request, "sleep", model or "*", details), service.inflight.pending():
        await service.control.sleep(model, level, mode)
    return json_response({"status": "sleeping", "level": level})


@router.post(
    "/wake_up",
    response_model=None,
    responses={200: {"model": Awake}, **error_responses(400, 401, 404, 503)},
    summary="Restore models that sleep",
)
async def wake_up(
    request: Request,
    tags: Annotated[list[str] | None, Query(description="weights, kv_cache; both without it.")] = None,
    model: str | None = ONE_MODEL,
) -> Response:
    service = get_service(request)
    with service.audited(request, "wake_up", model or "*", {"tags": tags}), service.inflight.pending():
        awake = await service.control.wake(model, tags)
    return json_response({"status": "awake" if awake else "sleeping", "tags": tags or ["weights", "kv_cache"]})


@router.get(
    "/is_sleeping",
    response_model=None,
    responses={200: {"model": IsSleeping}, **error_responses(401, 404, 503)},
    summary="Whether the models sleep",
)
async def is_sleeping(request: Request, model: str | None = ONE_MODEL) -> Response:
    return json_response({"is_sleeping": get_service(request).control.is_sleeping(model)})


@router.get(
    "/v1/model_aliases",
    response_model=None,
    responses={200: {"model": AliasList}, **error_responses(401)},
    summary="List the aliases that were set while the server runs",
)
async def list_aliases(request: Request) -> Response:
    service = get_service(request)
    return json_response({"object": "list", "data": [_shown(service, one) for one in service.control.aliases()]})


@router.post(
    "/v1/model_aliases",
    response_model=None,
    responses={200: {"model": Alias}, **error_responses(400, 401, 404, 413, 415, 503)},
    openapi_extra=json_body(SetAliasRequest),
    summary="Let a name stand for a model, or for several by weight",
)
async def set_alias(request: Request) -> Response:
    service = get_service(request)
    fields: SetAliasRequest = validate(SetAliasRequest, (await service.bodies.read(request)).value)
    targets = None if fields.models is None else [AliasTarget(one.model, one.weight) for one in fields.models]
    with service.audited(request, "set_alias", fields.alias, fields.model_dump(exclude={"alias"})):
        made = service.control.set_alias(fields.alias, fields.model, targets, fields.sticky)
    return json_response(_shown(service, made))


@router.delete(
    "/v1/model_aliases",
    response_model=None,
    responses={200: {"model": DeletedAlias}, **error_responses(400, 401, 404)},
    summary="Remove an alias",
)
async def remove_alias(
    request: Request, alias: str = Query("", description="The name of the alias.", max_length=512)
) -> Response:
    if not alias:
        raise BadRequest("`alias` must be in the query: DELETE /v1/model_aliases?alias=name.", "alias")
    service = get_service(request)
    with service.audited(request, "remove_alias", alias, {}):
        service.control.remove_alias(alias)
    return json_response({"id": alias, "object": "model_alias", "deleted": True})


@router.post(
    "/v1/reload",
    response_model=None,
    responses={200: {"model": Reloaded}, **error_responses(400, 401, 503)},
    summary="Read the file of --config again, and apply what can change at run time",
)
async def reload(request: Request) -> Response:
    service = get_service(request)
    with service.inflight.pending():
        done = await service.reload_settings(tenant_of(client_identity(request)))
    return json_response(done.model_dump())


def _shown(service: Service, alias: ModelAlias) -> dict[str, Any]:
    states = service.control.states()
    models = [
        {"model": target.model, "weight": target.weight, "state": states.get(target.model)} for target in alias.targets
    ]
    return {"id": alias.name, "object": "model_alias", "sticky": alias.sticky, "models": models}
