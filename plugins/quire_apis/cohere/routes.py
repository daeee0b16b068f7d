"""The routes of Cohere's API that the server itself lacks."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.plugin import Answer, QuireError, RouterContext
from quire_apis.cohere.chat_body import chat_body
from quire_apis.cohere.chat_events import ChatWriter, Event
from quire_apis.cohere.schemas import CohereChatRequest, CohereDetokenizeRequest, CohereTokenizeRequest
from quire_apis.responses_of_routes import called, described, whole_answer

META = {"api_version": {"version": "1"}}


def build_router(context: RouterContext) -> APIRouter:
    """The routes, which answer with the models of `context`."""
    router = APIRouter(tags=["Cohere"])

    async def start(request: Request, fields: CohereChatRequest) -> Answer:
        return await context.chat(request, chat_body(fields, await context.formats(fields.model)))

    @router.post(
        "/v2/chat", **described(CohereChatRequest, "Answer a conversation, Cohere's shape", "text/event-stream")
    )
    async def chat_v2(request: Request) -> Response:
        fields = await context.read(request, CohereChatRequest)
        writer = ChatWriter(str(uuid.uuid4()))

        async def whole() -> dict[str, Any]:
            answer = await start(request, fields)
            async with aclosing(answer.deltas()) as deltas:
                async for delta in deltas:
                    for _ in writer.push(delta):
                        pass  # the writer keeps what the events say
            return writer.whole(answer.usage())

        if fields.stream:
            return await context.stream(request, _events(await start(request, fields), writer), _failure)
        return await whole_answer(context, request, whole())

    _add_tokenizer_routes(router, context)
    return router


def _add_tokenizer_routes(router: APIRouter, context: RouterContext) -> None:
    @router.post("/v1/tokenize", **described(CohereTokenizeRequest, "Token ids of a text, Cohere's shape"))
    async def tokenize_v1(request: Request) -> Response:
        fields = await context.read(request, CohereTokenizeRequest)
        body = {"prompt": fields.text, "add_special_tokens": False, "return_token_strs": True}

        async def whole() -> dict[str, Any]:
            found = await called(context, request, "/tokenize", {**body, "model": fields.model})
            return {"tokens": found["tokens"], "token_strings": found["token_strs"], "meta": META}

        return await whole_answer(context, request, whole())

    @router.post("/v1/detokenize", **described(CohereDetokenizeRequest, "Text of token ids, Cohere's shape"))
    async def detokenize_v1(request: Request) -> Response:
        fields = await context.read(request, CohereDetokenizeRequest)

        async def whole() -> dict[str, Any]:
            found = await called(context, request, "/detokenize", {"tokens": fields.tokens, "model": fields.model})
            return {"text": found["prompt"], "meta": META}

        return await whole_answer(context, request, whole())


async def _events(answer: Answer, writer: ChatWriter) -> AsyncGenerator[bytes, None]:
    """The encoded events; the first come with the first token."""
    has_started = False
    async with aclosing(answer.deltas()) as deltas:
        async for delta in deltas:
            if not has_started:
                has_started = True
                yield _encoded(writer.start())
            yield b"".join(map(_encoded, writer.push(delta)))
    yield _encoded(writer.end(answer.usage()))


def _failure(error: QuireError) -> bytes:
    return _encoded({"type": "message-end", "delta": {"finish_reason": "ERROR", "error": error.message}})


def _encoded(event: Event) -> bytes:
    return b"event: " + event["type"].encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
