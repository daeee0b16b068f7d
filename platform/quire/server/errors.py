"""Errors as HTTP answers: one body shape, one place that chooses the status.

    {"error": {"message": …, "type": …, "param": …, "code": <status>}}

Every `QuireError` carries its own status and type. It does not know which route failed.
"""

from __future__ import annotations

import http
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from quire.errors import HostDied, Overloaded, PluginOff, QuireError
from quire.records import Refused

log = logging.getLogger("quire.server")

MAX_REPORTED_ERRORS = 10
MAX_READ_ERRORS = 100
MAX_SHOWN_INPUT = 200

RETRY_AFTER_S: Mapping[type[QuireError], int] = {Overloaded: 1, HostDied: 5, PluginOff: 30}
"""Seconds that a refused client should wait before it asks again."""


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(BaseModel):
    """The body of every answer that is an error, but for most 401."""

    error: ErrorDetail


class UnauthorizedBody(BaseModel):
    """The body of a 401."""

    error: str


class Malformed(QuireError):
    """The body is no JSON object, or does not fit the schema."""

    status = 400
    type = "Bad Request"


class GateRefused(QuireError):
    """A request gate said no, with a status of its own choice."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        known = 400 <= refused.status <= 503 and refused.status in http.HTTPStatus._value2member_map_
        self.status = refused.status if known else 403
        self.type = http.HTTPStatus(self.status).phrase


class ClientGone(Exception):
    """The client closed the connection; nobody reads the answer."""


def error_object(error: QuireError) -> dict[str, Any]:
    """The error shape, also used inside streams."""
    detail = {"message": error.message, "type": error.type, "param": error.param, "code": error.status}
    return {"error": detail}


def as_quire_error(error: BaseException) -> QuireError:
    """What a client may know of any exception: our own as they are, others only that they happened."""
    if isinstance(error, QuireError):
        return error
    log.error("unexpected error while serving a request", exc_info=error)
    return QuireError("An internal error occurred; the server's log has the details.")


def error_response(error: QuireError) -> Response:
    """The HTTP answer for an error."""
    headers = {}
    wait = RETRY_AFTER_S.get(type(error))
    if wait is not None:
        headers["retry-after"] = str(wait)
    body = msgspec.json.encode(error_object(error))
    return Response(body, status_code=error.status, media_type="application/json", headers=headers)


def validation_error(errors: Sequence[Mapping[str, Any]], value: Any, root: str = "body") -> Malformed:
    """Pydantic's findings in `value` as one error that names the first field."""
    found: dict[str, None] = {}
    for error in errors[:MAX_READ_ERRORS]:
        found[f"  {_location(error, value, root)}: {error['msg']} (got {_shown(error.get('input'))})"] = None
    count = len(found) + max(0, len(errors) - MAX_READ_ERRORS)
    lines = [f"{count} validation error{'s' if count != 1 else ''}:", *list(found)[:MAX_REPORTED_ERRORS]]
    if count > MAX_REPORTED_ERRORS:
        lines.append(f"  … and {count - MAX_REPORTED_ERRORS} more")
    return Malformed("\n".join(lines), _location(errors[0], value, root) if errors else None)


def _shown(value: Any) -> str:
    """The beginning of a value as Python writes it; of a long one no more than that is written."""
    if isinstance(value, str | bytes | list):
        shown = repr(value[:MAX_SHOWN_INPUT])
    elif isinstance(value, dict):
        shown = repr(dict(itertools.islice(value.items(), MAX_SHOWN_INPUT)))
    else:
        shown = repr(value)
    return shown if len(shown) <= MAX_SHOWN_INPUT else shown[:MAX_SHOWN_INPUT] + "…"


def _location(error: Mapping[str, Any], value: Any, root: str) -> str:
    """Where in the value the error is; names that pydantic gives to members of a union are left out."""
    path = [root]
    for part in error["loc"]:
        if _has(value, part):
            value = value[part]
        elif error["type"] != "missing" or part is not error["loc"][-1]:
            continue
        path.append(str(part))
    return ".".join(path)


def _has(value: Any, part: Any) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, Mapping) and part in value


def validate(model: type[BaseModel], body: Mapping[str, Any]) -> Any:
    """An instance of `model`, or `Malformed` that says where the body is wrong."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False, include_context=False), body) from None
    except RecursionError:
        raise Malformed("The body is nested too deeply.") from None


async def _on_quire_error(_: Request, error: Exception) -> Response:
    return error_response(as_quire_error(error))


async def _on_validation_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    found = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
    return error_response(validation_error(found, error.body, root=str(error.errors()[0]["loc"][0])))


async def _on_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


def install_handlers(app: FastAPI) -> None:
    """Make every exception of a route an answer in the error shape."""
    app.add_exception_handler(QuireError, _on_quire_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(Exception, _on_quire_error)


_MEANING = {
    400: "The request is malformed or asks for something that is not allowed.",
    401: "The API key is missing or wrong.",
    403: "A request gate refused.",
    404: "The model does not exist.",
    413: "The body, or a medium in it, is larger than the server accepts.",
    415: "The body is compressed in a way that the server does not know.",
    422: "A medium could not be fetched or decoded.",
    429: "A request gate refused for now.",
    500: "The server or a plugin failed.",
    501: "The model cannot do this.",
    503: "A bound on work in flight was reached, or the models are restarting; try again later.",
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` of a route: the error bodies behind these statuses."""
    return {
        status: {"model": UnauthorizedBody if status == 401 else ErrorBody, "description": _MEANING[status]}
        for status in statuses
    }


GENERATION_ERRORS = documented(400, 401, 403, 404, 413, 415, 422, 429, 500, 501, 503)
