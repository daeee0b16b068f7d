"""The routes of the Responses API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from quire.plugin import RouterContext, json_body
from quire_apis.responses.api import ResponsesApi
from quire_apis.responses.conversations import ConversationsApi
from quire_apis.responses.schemas import (
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
    ResponseRequest,
    TokenCountRequest,
)
from quire_apis.responses_of_routes import documented

_ID: Any = Path(json_schema_extra={"pattern": "^[^/\\r\\n]+$"})
Id = Annotated[str, _ID]
Limit = Annotated[int, Query(ge=1, le=100)]
Order = Literal["asc", "desc"]
EVENTS = "text/event-stream"


def build_router(context: RouterContext) -> APIRouter:
    """The routes, which answer with the models of `context`. Raises `ConfigError` for a store that cannot be used."""
    api = ResponsesApi(context)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await api.close()

    router = APIRouter(prefix="/v1", lifespan=lifespan)
    _add_responses(router, api)
    _add_conversations(router, ConversationsApi(api))
    return router


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _described(summary: str, body: Any = None, stream_type: str | None = None) -> dict[str, Any]:
    """Arguments of a route: how the OpenAPI document describes it."""
    more = {} if body is None else {"openapi_extra": json_body(body)}
    return {"response_model": None, "responses": documented(stream_type), "summary": summary, **more}


def _add_responses(router: APIRouter, api: ResponsesApi) -> None:
    tags: list[Any] = ["Responses"]

    @router.post("/responses", tags=tags, **_described("Make a response", ResponseRequest, EVENTS))
    async def create_response(request: Request) -> Response:
        return await api.create(request)

    @router.post("/responses/input_tokens", tags=tags, **_described("Count tokens of an input", TokenCountRequest))
    async def count_tokens(request: Request) -> Response:
        return await api.count(request)

    @router.get("/responses/{response_id}", tags=tags, **_described("A stored response", stream_type=EVENTS))
    async def get_response(
        request: Request,
        response_id: Id,
        stream: bool = False,
        starting_after: Annotated[int, Query(ge=-1)] = -1,
    ) -> Response:
        if stream:
            return await api.replay(request, response_id, starting_after)
        return _json(await api.retrieve(request, response_id))

    @router.delete("/responses/{response_id}", tags=tags, **_described("Delete a stored response"))
    async def delete_response(request: Request, response_id: Id) -> Response:
        return _json(await api.delete(request, response_id))

    @router.post("/responses/{response_id}/cancel", tags=tags, **_described("Cancel a response in the background"))
    async def cancel_response(request: Request, response_id: Id) -> Response:
        return _json(await api.cancel(request, response_id))

    @router.get("/responses/{response_id}/input_items", tags=tags, **_described("The input of a stored response"))
    async def list_input_items(
        request: Request, response_id: Id, after: str | None = None, limit: Limit = 20, order: Order = "desc"
    ) -> Response:
        return _json(await api.input_items(request, response_id, after, limit, order))


def _add_conversations(router: APIRouter, api: ConversationsApi) -> None:
    one: dict[str, Any] = {"path": "/conversations/{conversation_id}", "tags": ["Conversations"]}
    many: dict[str, Any] = {"path": "/conversations/{conversation_id}/items", "tags": ["Conversations"]}
    item: dict[str, Any] = {"path": "/conversations/{conversation_id}/items/{item_id}", "tags": ["Conversations"]}

    @router.post("/conversations", tags=one["tags"], **_described("Begin a conversation", ConversationRequest))
    async def create_conversation(request: Request) -> Response:
        return _json(await api.create(request))

    @router.get(**one, **_described("A conversation"))
    async def get_conversation(request: Request, conversation_id: Id) -> Response:
        return _json(await api.retrieve(request, conversation_id))

    @router.post(**one, **_described("Change the metadata of a conversation", ConversationUpdate))
    async def update_conversation(request: Request, conversation_id: Id) -> Response:
        return _json(await api.update(request, conversation_id))

    @router.delete(**one, **_described("Delete a conversation"))
    async def delete_conversation(request: Request, conversation_id: Id) -> Response:
        return _json(await api.delete(request, conversation_id))

    @router.get(**many, **_described("The items of a conversation"))
    async def list_items(
        request: Request, conversation_id: Id, after: str | None = None, limit: Limit = 20, order: Order = "desc"
    ) -> Response:
        return _json(await api.items(request, conversation_id, after, limit, order))

    @router.post(**many, **_described("Add items to a conversation", ItemsRequest))
    async def add_items(request: Request, conversation_id: Id) -> Response:
        return _json(await api.add_items(request, conversation_id))

    @router.get(**item, **_described("An item of a conversation"))
    async def get_item(request: Request, conversation_id: Id, item_id: Id) -> Response:
        return _json(await api.item(request, conversation_id, item_id))

    @router.delete(**item, **_described("Delete an item of a conversation"))
    async def delete_item(request: Request, conversation_id: Id, item_id: Id) -> Response:
        return _json(await api.delete_item(request, conversation_id, item_id))
