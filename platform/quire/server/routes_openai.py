"""The OpenAI-shaped routes: completions, chat, models."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from quire.adapter_info import AdapterInfo
from quire.server import chat, completions
from quire.server.body import json_body
from quire.server.chat_stream import ChatStream
from quire.server.completion_stream import CompletionStream
from quire.server.errors import GENERATION_ERRORS, documented
from quire.server.models import Served, does
from quire.server.schema_requests import ChatRequest, CompletionRequest
from quire.server.schema_responses import ChatCompletion, Completion, ModelCard, ModelList
from quire.server.service import Naming, Service
from quire.server.sse import unless_gone
from quire.server.streaming import stream_response

_EVENTS: dict[str, Any] = {"text/event-stream": {}}
_ModelId = Annotated[str, Path(json_schema_extra={"pattern": "^[^\\r\\n]+$"})]
"""A line of text, which is what paths match; longer ones are unknown routes."""


def json_response(value: Any) -> Response:
    """A 200 with a JSON body."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def streamed(model: type) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route that answers with `model`, or with a stream of events."""
    return {200: {"model": model, "description": "The answer, or its stream.", "content": _EVENTS}, **GENERATION_ERRORS}


def openai_router(service: Service) -> APIRouter:
    """Routes under /v1."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.post(
        "/completions",
        response_model=None,
        responses=streamed(Completion),
        openapi_extra=json_body(CompletionRequest),
        summary="Continue one or several prompts",
    )
    async def create_completion(request: Request) -> Response:
        served, fields = await service.accept(request, CompletionRequest, does("generate"))
        naming = Naming.of(request, fields.request_id)
        call = await completions.prepare(service, served, fields, naming, request.receive)
        if fields.stream:
            long_lead = fields.echo and fields.logprobs is not None
            workers = service.pools.answers if long_lead else None
            return await stream_response(request, CompletionStream(call), workers)
        return await unless_gone(request.receive, completions.answer(call))

    @router.post(
        "/chat/completions",
        response_model=None,
        responses=streamed(ChatCompletion),
        openapi_extra=json_body(ChatRequest),
        summary="Write the next message of a conversation",
    )
    async def create_chat_completion(request: Request) -> Response:
        served, fields = await service.accept(request, ChatRequest, does("generate"))
        naming = Naming.of(request, fields.request_id)
        call = await chat.prepare(service, served, fields, naming, request.receive)
        if fields.stream:
            return await stream_response(request, ChatStream(call))
        return await unless_gone(request.receive, chat.answer(call))

    _add_models(router, service)
    return router


def _add_models(router: APIRouter, service: Service) -> None:
    @router.get("/models/", include_in_schema=False, response_model=None)
    @router.get(
        "/models", response_model=None, responses={200: {"model": ModelList}, **documented(401)}, summary="List models"
    )
    async def list_models() -> Response:
        cards = [card(served, alias) for served in service.models.all for alias in served.aliases]
        cards += [adapter_card(service, info) for info in service.adapters.ready()]
        return json_response({"object": "list", "data": cards})

    @router.get(
        "/models/{model_id:path}",
        response_model=None,
        responses={200: {"model": ModelCard}, **documented(400, 401, 404)},
        summary="One model",
    )
    async def get_model(model_id: _ModelId) -> Response:
        for info in service.adapters.ready():
            if info.name == model_id:
                return json_response(adapter_card(service, info))
        served = service.models.get(model_id)
        if served is None:
            raise service.adapters.unknown(model_id)
        return json_response(card(served, model_id))


def adapter_card(service: Service, info: AdapterInfo) -> dict[str, Any]:
    """What the models list says of an adapter."""
    parent = service.adapters.parent(info)
    return {**card(parent, info.name), "root": info.path, "parent": parent.name, "max_model_len": None}


def card(served: Served, alias: str) -> dict[str, Any]:
    """What the models list says of one name."""
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
