"""The routes of the Messages API."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.plugin import Answer, AnswerUsage, BadRequest, ModelFormats, NotFound, QuireError, RouterContext
from quire_apis.anthropic.chat_body import chat_body, sampling_fields
from quire_apis.anthropic.errors import error_body
from quire_apis.anthropic.message_writer import Event, MessageWriter
from quire_apis.anthropic.schemas import CountTokensRequest, MessagesRequest
from quire_apis.responses_of_routes import described, whole_answer

DEFAULT_MODEL = "*"
"""The value of the option `fallback` that means the server's default model."""


def build_router(context: RouterContext) -> APIRouter:
    """The routes, which answer with the models of `context`."""
    router = APIRouter(prefix="/v1/messages", tags=["Anthropic"])
    api = _MessagesApi(context)

    @router.post("", **described(MessagesRequest, "Answer a conversation, Anthropic's shape", "text/event-stream"))
    async def create_message(request: Request) -> Response:
        return await api.create(request)

    @router.post(
        "/count_tokens", **described(CountTokensRequest, "Count the tokens of a conversation, Anthropic's shape")
    )
    async def count_tokens(request: Request) -> Response:
        return await api.count(request)

    return router


class _MessagesApi:
    """Answers requests with the models of a server."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self._fallback: str = context.options.get("fallback", "")

    async def create(self, request: Request) -> Response:
        """The message, or the stream of its events."""
        fields = await self._context.read(request, MessagesRequest)
        request_id = request.headers.get("x-request-id") or f"req_{uuid.uuid4().hex}"

        async def whole() -> dict[str, Any]:
            answer, writer = await self._begin(request, fields)
            async with aclosing(answer.deltas()) as deltas:
                async for delta in deltas:
                    for _ in writer.push(delta) if fields.max_tokens else ():
                        pass  # the writer keeps what the events say
            return writer.message(_usage(answer, fields))

        def failure(error: QuireError) -> bytes:
            return _encoded({**error_body(error, request_id)})

        if fields.stream:
            answer, writer = await self._begin(request, fields)
            response = await self._context.stream(request, _events(answer, writer, fields), failure)
        else:
            response = await whole_answer(self._context, request, whole())
        response.headers["request-id"] = request_id
        return response

    async def count(self, request: Request) -> Response:
        """The number of tokens of the prompt."""
        fields = await self._context.read(request, CountTokensRequest)

        async def whole() -> dict[str, Any]:
            model, formats = await self._find(fields.model)
            answer = await self._context.chat(request, chat_body(fields, model, formats))
            return {"input_tokens": answer.usage().prompt}

        return await whole_answer(self._context, request, whole())

    async def _begin(self, request: Request, fields: MessagesRequest) -> tuple[Answer, MessageWriter]:
        """The answer, and the writer of its message.

        An answer that would not fit into the context may fill the context instead: clients ask for as many tokens as
        Anthropic's models can write.
        """
        model, formats = await self._find(fields.model)
        body = {**chat_body(fields, model, formats), **sampling_fields(fields)}
        fills_context = False
        try:
            answer = await self._context.chat(request, {**body, "max_tokens": max(1, fields.max_tokens)})
        except BadRequest as error:
            if error.param != "max_tokens":
                raise
            fills_context = True
            answer = await self._context.chat(request, body)
        hides = fields.thinking is not None and fields.thinking.display == "omitted"
        writer = MessageWriter(f"msg_{uuid.uuid4().hex}", answer.model, hides, fills_context)
        if not fields.max_tokens:
            writer.cut()
        return answer, writer

    async def _find(self, model: str) -> tuple[str | None, ModelFormats]:
        """The name of the model that answers, None: the server's default, and its formats."""
        try:
            return model, await self._context.formats(model)
        except NotFound:
            if not self._fallback:
                return model, ModelFormats()  # a request gate may name another; otherwise the chat is refused
        name = None if self._fallback == DEFAULT_MODEL else self._fallback
        return name, await self._context.formats(name)


async def _events(answer: Answer, writer: MessageWriter, fields: MessagesRequest) -> AsyncGenerator[bytes, None]:
    """The encoded events. The first come with the first token, when the number of cached tokens is known."""
    has_started = False
    async with aclosing(answer.deltas()) as deltas:
        async for delta in deltas:
            if not has_started:
                has_started = True
                yield b"".join(map(_encoded, writer.start(_usage(answer, fields))))
            if fields.max_tokens:
                yield b"".join(map(_encoded, writer.push(delta)))
    yield b"".join(map(_encoded, writer.end(_usage(answer, fields))))


def _usage(answer: Answer, fields: MessagesRequest) -> AnswerUsage:
    usage = answer.usage()
    return usage if fields.max_tokens else AnswerUsage(usage.prompt, 0, usage.cached, 0)


def _encoded(event: Event) -> bytes:
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"event: {event['type']}\ndata: {data}\n\n".encode()
