"""JSON responses, and how the responses of a route appear in the OpenAPI document."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.responses import Response

from quire.errors import STATUS_DESCRIPTIONS

_EVENTS: dict[str, Any] = {"text/event-stream": {}}


class ErrorDetail(BaseModel):
    """The error of an error response."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(BaseModel):
    """The body of every error response except most responses of status 401."""

    error: ErrorDetail


class UnauthorizedBody(BaseModel):
    """The body of most responses of status 401."""

    error: str


def json_response(value: Any, status: int = 200) -> Response:
    """A response with a JSON body."""
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route: the error bodies of these statuses."""
    return {
        status: {"model": UnauthorizedBody if status == 401 else ErrorBody, "description": STATUS_DESCRIPTIONS[status]}
        for status in statuses
    }


GENERATION_ERRORS = error_responses(400, 401, 403, 404, 413, 415, 422, 429, 500, 501, 503)


def streamed_responses(model: type) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route that answers with `model` or with a stream of events."""
    return {200: {"model": model, "description": "The answer, or its stream.", "content": _EVENTS}, **GENERATION_ERRORS}
