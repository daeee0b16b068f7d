"""Routes about adapters: load, unload, look."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from quire.adapter_info import AdapterInfo
from quire.server.body import json_body
from quire.server.errors import documented, validate
from quire.server.routes_openai import json_response
from quire.server.schema_adapters import AdapterList, LoadAdapterRequest, UnloadAdapterRequest
from quire.server.service import Service

_DONE: dict[int | str, dict[str, Any]] = {
    200: {"description": "It is done.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


def adapters_router(service: Service) -> APIRouter:
    """Under /v1, as vLLM has them, and `GET /v1/adapters`."""
    router = APIRouter(prefix="/v1", tags=["Adapters"])

    @router.post(
        "/load_lora_adapter",
        response_class=Response,  # which documents no body, so that errors are documented as the JSON they are
        responses={**_DONE, **documented(400, 401, 404, 413, 415, 500, 503)},
        openapi_extra=json_body(LoadAdapterRequest),
        summary="Load an adapter",
    )
    async def load(request: Request) -> Response:
        asked: LoadAdapterRequest = validate(LoadAdapterRequest, (await service.bodies.read(request)).value)
        info = await service.adapters.load(asked)
        how = "is being loaded" if info.state == "loading" else "added successfully"
        return PlainTextResponse(f"Success: LoRA adapter '{info.name}' {how}.")

    @router.post(
        "/unload_lora_adapter",
        response_class=Response,  # which documents no body, so that errors are documented as the JSON they are
        responses={**_DONE, **documented(400, 401, 404, 413, 415, 500, 503)},
        openapi_extra=json_body(UnloadAdapterRequest),
        summary="Unload an adapter; requests in flight finish on it",
    )
    async def unload(request: Request) -> Response:
        asked: UnloadAdapterRequest = validate(UnloadAdapterRequest, (await service.bodies.read(request)).value)
        await service.adapters.unload(asked.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")

    @router.get(
        "/adapters",
        response_model=None,
        responses={200: {"model": AdapterList}, **documented(401, 503)},
        summary="List adapters: state, size, where they are, how they are used",
    )
    async def adapters() -> Response:
        infos = await service.adapters.look()
        return json_response({"object": "list", "data": [_row(service, info) for info in infos]})

    return router


def _row(service: Service, info: AdapterInfo) -> dict[str, Any]:
    return {
        "id": info.name,
        "object": "adapter",
        "parent": service.adapters.parent(info).name,
        "root": info.path,
        "revision": info.revision,
        "state": info.state,
        "error": info.error,
        "tier": info.tier,
        "kind": info.kind,
        "rank": info.rank,
        "bytes": info.num_bytes,
        "targets": info.targets,
        "pinned": info.pinned,
        "requests": info.num_requests,
        "requests_total": info.num_requests_total,
    }
