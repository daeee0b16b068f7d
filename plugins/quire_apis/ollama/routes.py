"""The routes of Ollama's API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from quire.plugin import Answer, BadRequest, RouterContext
from quire_apis.ollama import error_body
from quire_apis.ollama.answer_lines import AnswerWriter, encoded_line, head
from quire_apis.ollama.chat_body import chat_body, prompt_body, question_body
from quire_apis.ollama.descriptions import find_name, model_rows, running_rows, shown
from quire_apis.ollama.schemas import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaModelRequest,
    OllamaRequest,
)
from quire_apis.responses_of_routes import called, described, documented, whole_answer

API_VERSION = "0.14.0"
"""The version of Ollama whose API this is: clients refuse older ones."""

LINES = "application/x-ndjson"

_Fields = TypeVar("_Fields", bound=BaseModel)


def build_router(context: RouterContext) -> APIRouter:
    """The routes, which answer with the models of `context`."""
    router = APIRouter(prefix="/api", tags=["Ollama"])
    api = _OllamaApi(context)

    def post(path: str, answer: Callable[[Request], Awaitable[Response]], body: Any, about: str, streams: bool) -> None:
        router.add_api_route(
            path,
            answer,
            methods=["POST"],
            **described(body, f"{about}, Ollama's shape", LINES if streams else None),
            operation_id=f"ollama_{path[1:]}",
        )

    def get(path: str, answer: Callable[[], Awaitable[Response]], about: str) -> None:
        router.add_api_route(
            path,
            answer,
            methods=["GET"],
            response_model=None,
            responses=documented(),
            summary=f"{about}, Ollama's shape",
            operation_id=f"ollama_{path[1:]}",
        )

    post("/chat", api.chat, OllamaChatRequest, "Answer a conversation", True)
    post("/generate", api.generate, OllamaGenerateRequest, "Answer or continue a prompt", True)
    post("/embed", api.embed, OllamaEmbedRequest, "Embed texts", False)
    post("/embeddings", api.embeddings, OllamaEmbeddingsRequest, "Embed a text", False)
    post("/show", api.show, OllamaModelRequest, "Describe a model", False)
    post("/pull", api.pull, OllamaModelRequest, "Whether a model is here", True)
    get("/tags", api.tags, "List models")
    get("/ps", api.running, "List loaded models")
    get("/version", api.version, "Version of the API")
    return router


class _OllamaApi:
    """Answers requests with the models of a server."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context

    async def _read(self, request: Request, schema: type[_Fields]) -> _Fields:
        """The body. Its media type does not matter, because some clients (curl, LiteLLM) do not say JSON.

        Those of web pages must say it: a page of another site can only do so if `--allowed-origins` lets it.
        """
        headers = request.scope["headers"]
        if "origin" not in request.headers:
            headers = [pair for pair in headers if pair[0] != b"content-type"] + [
                (b"content-type", b"application/json")
            ]
        return await self._context.read(Request({**request.scope, "headers": headers}, request.receive), schema)

    async def chat(self, request: Request) -> Response:
        """The answer to a conversation; without messages, whether the model is there."""
        begun = time.perf_counter_ns()
        fields = await self._read(request, OllamaChatRequest)
        model = find_name(self._context, fields.model)
        if not fields.messages:
            return await self._loaded(model, {"message": {"role": "assistant", "content": ""}})

        async def start() -> Answer:
            body = chat_body(fields, model, await self._context.formats(model))
            return await self._context.chat(request, body)

        return await self._answer(request, fields, start, True, begun)

    async def generate(self, request: Request) -> Response:
        """The answer to a prompt; without one, whether the model is there."""
        begun = time.perf_counter_ns()
        fields = await self._read(request, OllamaGenerateRequest)
        model = find_name(self._context, fields.model)
        if not fields.prompt and not fields.images:
            return await self._loaded(model, {"response": ""})

        async def start() -> Answer:
            if fields.raw:
                return await self._context.complete(request, prompt_body(fields, model))
            body = question_body(fields, model, await self._context.formats(model))
            return await self._context.chat(request, body)

        return await self._answer(request, fields, start, False, begun)

    async def _loaded(self, model: str, said: dict[str, Any]) -> Response:
        await self._context.formats(model)
        return JSONResponse({**head(model), **said, "done": True, "done_reason": "load"})

    async def _answer(
        self,
        request: Request,
        fields: OllamaRequest,
        start: Callable[[], Awaitable[Answer]],
        is_chat: bool,
        begun: int,
    ) -> Response:
        """The answer that `start` begins, as lines or whole."""

        async def lines(answer: Answer) -> AsyncGenerator[bytes, None]:
            writer = AnswerWriter(answer.model, is_chat, begun)
            async with aclosing(answer.deltas()) as deltas:
                async for delta in deltas:
                    yield b"".join(map(encoded_line, writer.push(delta)))
            yield encoded_line(writer.last(answer.usage()))

        async def whole() -> dict[str, Any]:
            answer = await start()
            writer = AnswerWriter(answer.model, is_chat, begun)
            async with aclosing(answer.deltas()) as deltas:
                async for delta in deltas:
                    writer.take(delta)
            return writer.whole(answer.usage())

        if not fields.stream:
            return await whole_answer(self._context, request, whole())
        return await self._context.stream(
            request, lines(await start()), lambda error: encoded_line(error_body(error, None)), LINES
        )

    async def embed(self, request: Request) -> Response:
        """The embeddings of texts."""
        begun = time.perf_counter_ns()
        fields = await self._read(request, OllamaEmbedRequest)
        texts = [fields.input] if isinstance(fields.input, str) else fields.input or []

        async def whole() -> dict[str, Any]:
            vectors, count = await self._vectors(request, fields.model, texts, fields.truncate, fields.dimensions)
            total = time.perf_counter_ns() - begun
            times = {"total_duration": total, "load_duration": 0, "prompt_eval_count": count}
            return {"model": fields.model, "embeddings": vectors, **times}

        return await whole_answer(self._context, request, whole())

    async def embeddings(self, request: Request) -> Response:
        """The embedding of one text."""
        fields = await self._read(request, OllamaEmbeddingsRequest)
        texts = [fields.prompt] if fields.prompt else []

        async def whole() -> dict[str, Any]:
            vectors, _ = await self._vectors(request, fields.model, texts, True, None)
            return {"embedding": vectors[0] if vectors else []}

        return await whole_answer(self._context, request, whole())

    async def _vectors(
        self, request: Request, model: str, texts: list[str], truncate: bool, dimensions: int | None
    ) -> tuple[list[list[float]], int]:
        """The embeddings, and how many tokens the texts have."""
        name = find_name(self._context, model)
        if not texts:
            await self._context.formats(name)
            return [], 0
        body: dict[str, Any] = {"model": name, "input": texts}
        if truncate:
            body["truncate_prompt_tokens"] = -1
        if dimensions is not None:
            body["dimensions"] = dimensions
        found = await called(self._context, request, "/v1/embeddings", body)
        return [item["embedding"] for item in found["data"]], found["usage"]["prompt_tokens"]

    async def tags(self) -> Response:
        return JSONResponse({"models": await asyncio.to_thread(lambda: list(model_rows(self._context)))})

    async def running(self) -> Response:
        return JSONResponse({"models": await asyncio.to_thread(running_rows, self._context)})

    async def version(self) -> Response:
        return JSONResponse({"version": API_VERSION})

    async def show(self, request: Request) -> Response:
        """What is known of a model."""
        name = await self._named(request)
        formats = await self._context.formats(name)
        return JSONResponse(await asyncio.to_thread(shown, self._context, name, formats))

    async def pull(self, request: Request) -> Response:
        """Success for a model that is served; others cannot be fetched this way."""
        await self._context.formats(await self._named(request))
        return Response(encoded_line({"status": "success"}), media_type=LINES)

    async def _named(self, request: Request) -> str:
        fields = await self._read(request, OllamaModelRequest)
        name = fields.model or fields.name
        if not name:
            raise BadRequest("`model` is needed.", "model")
        return find_name(self._context, name)
