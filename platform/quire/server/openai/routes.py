"""The routes of OpenAI's API that generate text or list models: completions, chat, models."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from quire.server.http.responses import error_responses, json_response, streamed_responses
from quire.server.http.sse import cancel_on_disconnect
from quire.server.jobs.stream_encoder import stream_response
from quire.server.openai import chat, completions
from quire.server.openai.chat_stream import ChatStream
from quire.server.openai.completion_stream import CompletionStream
from quire.server.schemas.requests import ChatRequest, CompletionRequest
from quire.server.schemas.responses import ChatCompletion, Completion, ModelCard, ModelList
from quire.server.service.models import ServedModel, supports
from quire.server.service.service import ResponseIds, Service, get_service
from quire.types.adapter_info import AdapterInfo
from quire.types.request_model import json_body

ModelId = Annotated[str, Path(json_schema_extra={"pattern": "^[^\\r\\n]+$"})]
"""One line of text. A path parameter matches no line break, so an id with one is an unknown route."""

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post(
    "/completions",
    response_model=None,
    responses=streamed_responses(Completion),
    openapi_extra=json_body(CompletionRequest),
    summary="Continue one or several prompts",
)
async def create_completion(request: Request) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, CompletionRequest, supports("generate"))
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await completions.prepare(service, served, fields, ids, request.receive)
    if fields.stream:
        echoes_logprobs = fields.echo and fields.logprobs is not None  # the first event may be large
        workers = service.pools.answers if echoes_logprobs else None
        return await stream_response(request, CompletionStream(call), workers)
    return await cancel_on_disconnect(request.receive, completions.run(call))


@router.post(
    "/chat/completions",
    response_model=None,
    responses=streamed_responses(ChatCompletion),
    openapi_extra=json_body(ChatRequest),
    summary="Write the next message of a conversation",
)
async def create_chat_completion(request: Request) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, ChatRequest, supports("generate"))
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await chat.prepare(service, served, fields, ids, request.receive)
    if fields.stream:
        return await stream_response(request, ChatStream(call))
    return await cancel_on_disconnect(request.receive, chat.run(call))


@router.get("/models/", include_in_schema=False, response_model=None)
@router.get(
    "/models", response_model=None, responses={200: {"model": ModelList}, **error_responses(401)}, summary="List models"
)
async def list_models(request: Request) -> Response:
    service = get_service(request)
    cards = [model_card(served, alias) for served in service.models.all for alias in served.aliases]
    cards += [adapter_card(service, info) for info in service.adapters.ready()]
    return json_response({"object": "list", "data": cards})


@router.get(
    "/models/{model_id:path}",
    response_model=None,
    responses={200: {"model": ModelCard}, **error_responses(400, 401, 404)},
    summary="One model",
)
async def get_model(request: Request, model_id: ModelId) -> Response:
    service = get_service(request)
    for info in service.adapters.ready():
        if info.name == model_id:
            return json_response(adapter_card(service, info))
    served = service.models.get(model_id)
    if served is None:
        raise service.adapters.not_found(model_id)
    return json_response(model_card(served, model_id))


def adapter_card(service: Service, info: AdapterInfo) -> dict[str, Any]:
    """The entry of an adapter in the list of models."""
    parent = service.adapters.base_model(info)
    return {**model_card(parent, info.name), "root": info.path, "parent": parent.name, "max_model_len": None}


def model_card(served: ServedModel, alias: str) -> dict[str, Any]:
    """The entry of one alias of a model in the list of models."""
    created = int(time.time())
    permission = {
        "id": f"modelperm-{alias}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": alias,
        "object": "model",
        "created": created,
        "owned_by": "quire",
        "root": served.info.root,
        "parent": None,
        "max_model_len": served.info.max_model_len,
        "permission": [permission],
    }
