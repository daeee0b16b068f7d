"""What the routes of all these APIs share: their documentation, answers that are sent at once, names of models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from quire.errors import STATUS_DESCRIPTIONS
from quire.plugin import ModelInfo, QuireError, RouterContext, json_body

_JSON: dict[str, Any] = {"application/json": {}}


def documented(stream_type: str | None = None) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route that answers with JSON. stream_type: media type of its streams, None: it has none."""
    success = {"description": "The answer.", "content": {**_JSON, **({stream_type: {}} if stream_type else {})}}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"description": text, "content": _JSON} for status, text in STATUS_DESCRIPTIONS.items()
    }
    return {200: success, **errors}


def described(body: Any, summary: str, stream_type: str | None = None) -> dict[str, Any]:
    """Arguments of a POST route that reads its own body. body: its model. stream_type: as in `documented`."""
    return {
        "response_model": None,
        "responses": documented(stream_type),
        "openapi_extra": json_body(body),
        "summary": summary,
    }


def models_of_name(context: RouterContext, name: str | None) -> list[ModelInfo]:
    """The models that a client's name stands for: that of a model, an alias, or that of an adapter."""
    adapted = {adapter.name: adapter.model for adapter in context.adapters()}
    own = adapted.get(name or "", name)
    return [info for info in context.models() if own == info.name or own in info.aliases]


async def whole_answer(context: RouterContext, request: Request, work: Coroutine[Any, Any, Any]) -> Response:
    """A JSON response with the result of `work`, which is cancelled when the client disconnects first."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield msgspec.json.encode(await work)

    def failure(error: QuireError) -> bytes:
        return b""  # there is one piece, and an error before it has a response of its own

    return await context.stream(request, pieces(), failure, "application/json")


class RouteFailed(QuireError):
    """Another route of the server answered with an error; `status` is that of its answer."""

    def __init__(self, status: int, answer: Any) -> None:
        error = answer.get("error") if isinstance(answer, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        super().__init__(str(message or answer))
        self.status = status


async def called(context: RouterContext, request: Request, path: str, body: Mapping[str, Any]) -> Any:
    """The JSON answer of another route to `body`, asked as the client of `request`. Raises `RouteFailed`."""
    status, answer = await context.call(path, body, context.client_of(request))
    if status != 200:
        raise RouteFailed(status, answer)
    return answer
