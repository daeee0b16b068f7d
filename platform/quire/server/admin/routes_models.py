"""The routes that load and unload models."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.server.http.body import validate
from quire.server.http.responses import error_responses, json_response
from quire.server.openai.model_cards import model_details
from quire.server.schemas.models import LoadModelRequest, ModelDetails, UnloadedModel, UnloadModelRequest
from quire.server.service.service import get_service
from quire.types.request_model import json_body

router = APIRouter(prefix="/v1", tags=["Models"])


@router.post(
    "/load_model",
    response_model=None,
    responses={
        200: {"model": ModelDetails, "description": "The model is ready."},
        202: {"model": ModelDetails, "description": "Without `wait`: the model is being loaded."},
        **error_responses(400, 401, 404, 413, 415, 500, 503),
    },
    openapi_extra=json_body(LoadModelRequest),
    summary="Load a model while others are served",
)
async def load(request: Request) -> Response:
    service = get_service(request)
    fields: LoadModelRequest = validate(LoadModelRequest, (await service.bodies.read(request)).value)
    details = fields.model_dump(exclude={"name"})  # a shutdown does not wait for the load
    with service.audited(request, "load_model", fields.name, details), service.inflight.pending():
        loaded = await service.control.load(fields.name, fields.model, fields.settings, fields.wait)
    return json_response(model_details(service, loaded, fields.name), 200 if fields.wait else 202)


@router.post(
    "/unload_model",
    response_model=None,
    responses={200: {"model": UnloadedModel}, **error_responses(400, 401, 404, 413, 415, 500, 503)},
    openapi_extra=json_body(UnloadModelRequest),
    summary="Unload a model when its requests have ended, or end its load",
)
async def unload(request: Request) -> Response:
    service = get_service(request)
    fields: UnloadModelRequest = validate(UnloadModelRequest, (await service.bodies.read(request)).value)
    details = {"force": fields.force}
    with service.audited(request, "unload_model", fields.name, details), service.inflight.pending():
        name = await service.control.unload(fields.name, fields.force)
    return json_response({"id": name, "object": "model", "deleted": True})
