"""The routes of OpenAI's API that generate text or list models: completions, chat, models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from quire.server.http.responses import error_responses, json_response, streamed_responses
from quire.server.http.sse import cancel_on_disconnect
from quire.server.jobs.stream_encoder import stream_response
from quire.server.openai import chat, completions
from quire.server.openai.chat_stream import ChatStream
from quire.server.openai.completion_stream import CompletionStream
from quire.server.openai.model_cards import (
    adapter_card,
    adapter_details,
    alias_card,
    alias_details,
    known_model,
    model_card,
    model_details,
    unloaded_cards,
)
from quire.server.schemas.models import ModelDetails
from quire.server.schemas.requests import ChatRequest, CompletionRequest
from quire.server.schemas.responses import ChatCompletion, Completion, ModelList
from quire.server.service.models import supports
from quire.server.service.service import ResponseIds, get_service
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
    cards += [alias_card(service, alias) for alias in service.models.aliases.all()]
    cards += [adapter_card(service, info) for info in service.adapters.ready()]
    cards += unloaded_cards(service)
    return json_response({"object": "list", "data": cards})


@router.get(
    "/models/{model_id:path}",
    response_model=None,
    responses={200: {"model": ModelDetails}, **error_responses(400, 401, 404)},
    summary="One model: its state, progress, memory and adapters",
)
async def get_model(request: Request, model_id: ModelId) -> Response:
    service = get_service(request)
    for info in (*service.adapters.ready(), *service.residency.registrations.kept_adapters()):
        if info.name == model_id:
            return json_response(adapter_details(service, info))
    if (alias := service.models.aliases.get(model_id)) is not None:
        return json_response(alias_details(service, alias))
    found = known_model(service, model_id)
    if found is None:
        raise service.adapters.not_found(model_id)
    return json_response(model_details(service, found, model_id))
