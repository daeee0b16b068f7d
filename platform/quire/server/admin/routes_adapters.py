"""The routes that load, unload and list adapters: those of vLLM, and `GET /v1/adapters`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from quire.server.http.body import validate
from quire.server.http.responses import error_responses, json_response
from quire.server.residency.leases import leases_of
from quire.server.schemas.adapters import AdapterList, LoadAdapterRequest, UnloadAdapterRequest
from quire.server.service.service import Service, get_service
from quire.server.tenants.ticket import may_use_adapter
from quire.types.adapter_info import AdapterInfo
from quire.types.request_model import json_body

_DONE: dict[int | str, dict[str, Any]] = {
    200: {"description": "It is done.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


router = APIRouter(prefix="/v1", tags=["Adapters"])


@router.post(
    "/load_lora_adapter",
    response_class=Response,  # leaves the JSON of errors as the only documented JSON
    responses={**_DONE, **error_responses(400, 401, 404, 413, 415, 500, 503)},
    openapi_extra=json_body(LoadAdapterRequest),
    summary="Load an adapter",
)
async def load(request: Request) -> Response:
    service = get_service(request)
    fields: LoadAdapterRequest = validate(LoadAdapterRequest, (await service.bodies.read(request)).value)
    details = fields.model_dump(exclude={"lora_name"})
    with service.audited(request, "load_adapter", fields.lora_name, details):
        with service.inflight.pending():
            for name in (fields.base_model_name, fields.lora_name):
                await service.residency.use(service.residency.find(name), leases_of(request.scope))
        info = await service.adapters.load(fields)
    how = "is being loaded" if info.state == "loading" else "added successfully"
    return PlainTextResponse(f"Success: LoRA adapter '{info.name}' {how}.")


@router.post(
    "/unload_lora_adapter",
    response_class=Response,  # leaves the JSON of errors as the only documented JSON
    responses={**_DONE, **error_responses(400, 401, 404, 413, 415, 500, 503)},
    openapi_extra=json_body(UnloadAdapterRequest),
    summary="Unload an adapter; requests in flight finish on it",
)
async def unload(request: Request) -> Response:
    service = get_service(request)
    fields: UnloadAdapterRequest = validate(UnloadAdapterRequest, (await service.bodies.read(request)).value)
    with service.audited(request, "unload_adapter", fields.lora_name, {}):
        is_known = may_use_adapter(fields.lora_name) and service.residency.forget_adapter(fields.lora_name)
        if not is_known:
            await service.adapters.unload(fields.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{fields.lora_name}' removed successfully.")


@router.get(
    "/adapters",
    response_model=None,
    responses={200: {"model": AdapterList}, **error_responses(401, 503)},
    summary="List adapters: state, size, where they are, how they are used",
)
async def adapters(request: Request) -> Response:
    service = get_service(request)
    infos = [*await service.adapters.fetch(), *service.residency.registrations.kept_adapters()]
    return json_response({"object": "list", "data": [_row(service, info) for info in infos]})


def _row(service: Service, info: AdapterInfo) -> dict[str, Any]:
    return {
        "id": info.name,
        "object": "adapter",
        "parent": info.model,
        "root": info.path,
        "revision": info.revision,
        "state": info.state,
        "error": info.error,
        "tier": info.tier,
        "kind": info.kind,
        "rank": info.rank,
        "bytes": info.num_bytes,
        "targets": info.targets,
        "virtual_tokens": info.virtual_tokens,
        "pinned": info.pinned,
        "requests": info.num_requests,
        "requests_total": info.num_requests_total,
    }
