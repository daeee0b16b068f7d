"""Turns errors into HTTP responses, all of one body shape.

    {"error": {"message": …, "type": …, "param": …, "code": <status>}}

Every `QuireError` carries its own status and type.
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
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.errors import EngineDied, ModelAsleep, ModelNotLoaded, ModelUnloaded, Overloaded, PluginOff, QuireError
from quire.records import RequestRefused
from quire.server.http.request_ids import header_id

log = logging.getLogger("quire.server")

SCOPE_ERROR = "quire.error"
"""Key in a request's scope: the error that was answered."""

MAX_REPORTED_ERRORS = 10
MAX_READ_ERRORS = 100
MAX_SHOWN_INPUT = 200

RETRY_AFTER_S: Mapping[type[QuireError], int] = {
    Overloaded: 1,
    EngineDied: 5,
    ModelUnloaded: 5,
    ModelAsleep: 5,
    PluginOff: 30,
    ModelNotLoaded: 5,
}
"""The `Retry-After` header of these errors, in seconds."""


class MalformedBody(QuireError):
    """The body is not a JSON object, or does not fit the schema."""

    status = 400
    type = "Bad Request"


class GateRefused(QuireError):
    """A request gate refused the request, with a status that the gate chose."""

    def __init__(self, refused: RequestRefused) -> None:
        super().__init__(refused.message)
        known = 400 <= refused.status <= 503 and refused.status in http.HTTPStatus._value2member_map_
        self.status = refused.status if known else 403
        self.type = http.HTTPStatus(self.status).phrase


class ClientDisconnected(Exception):
    """The client closed the connection before the response was complete."""


def error_object(error: QuireError) -> dict[str, Any]:
    """The body of an error response, also used inside streams."""
    detail = {"message": error.message, "type": error.type, "param": error.param, "code": error.status}
    return {"error": detail}


def as_quire_error(error: BaseException) -> QuireError:
    """A `QuireError` as it is; any other exception is logged and becomes an internal error without details."""
    if isinstance(error, QuireError):
        return error
    log.error("unexpected error while serving a request", exc_info=error)
    return QuireError("An internal error occurred; the server's log has the details.")


ERROR_BODIES = "quire_error_bodies"
"""Attribute of `app.state`: for routes whose error responses have a shape of their own, the pattern of the path and the
function that makes the body."""


class ErrorResponse(Response):
    """A response with an error object, in the shape of the routes at the request's path.

    body: instead of the usual shape.
    """

    media_type = "application/json"

    def __init__(self, error: QuireError, body: bytes | None = None) -> None:
        wait = error.retry_after_s if isinstance(error, ModelNotLoaded) else None
        wait = RETRY_AFTER_S.get(type(error)) if wait is None else wait
        headers = {} if wait is None else {"retry-after": str(wait)}
        content = msgspec.json.encode(error_object(error)) if body is None else body
        super().__init__(content, status_code=error.status, headers=headers)
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bodies = getattr(scope["app"].state, ERROR_BODIES, ()) if "app" in scope else ()
        for pattern, make_body in bodies:
            if pattern.match(scope["path"]):
                self.body = msgspec.json.encode(make_body(self._error, header_id(Headers(scope=scope))))
                self.headers["content-length"] = str(len(self.body))
                break
        await super().__call__(scope, receive, send)


def error_response(error: QuireError) -> Response:
    return ErrorResponse(error)


def validation_error(errors: Sequence[Mapping[str, Any]], value: Any, root: str = "body") -> MalformedBody:
    """One error for all that pydantic found in `value`; its `param` is the first field."""
    found: dict[str, None] = {}
    for error in errors[:MAX_READ_ERRORS]:
        found[f"  {_location(error, value, root)}: {error['msg']} (got {_shown(error.get('input'))})"] = None
    count = len(found) + max(0, len(errors) - MAX_READ_ERRORS)
    lines = [f"{count} validation error{'s' if count != 1 else ''}:", *list(found)[:MAX_REPORTED_ERRORS]]
    if count > MAX_REPORTED_ERRORS:
        lines.append(f"  … and {count - MAX_REPORTED_ERRORS} more")
    return MalformedBody("\n".join(lines), _location(errors[0], value, root) if errors else None)


def _shown(value: Any) -> str:
    """The `repr` of a value, cut to `MAX_SHOWN_INPUT` characters before a long value is written out."""
    if isinstance(value, str | bytes | list):
        shown = repr(value[:MAX_SHOWN_INPUT])
    elif isinstance(value, dict):
        shown = repr(dict(itertools.islice(value.items(), MAX_SHOWN_INPUT)))
    else:
        shown = repr(value)
    return shown if len(shown) <= MAX_SHOWN_INPUT else shown[:MAX_SHOWN_INPUT] + "…"


def _location(error: Mapping[str, Any], value: Any, root: str) -> str:
    """The path of the error in the value, without the names that pydantic gives to members of a union."""
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


async def _on_quire_error(request: Request, error: Exception) -> Response:
    answered = request.scope[SCOPE_ERROR] = as_quire_error(error)
    return error_response(answered)


async def _on_validation_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    found = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
    return error_response(validation_error(found, error.body, root=str(error.errors()[0]["loc"][0])))


async def _on_client_disconnected(_: Request, __: Exception) -> Response:
    return Response(status_code=499)


def install_handlers(app: FastAPI) -> None:
    """Answer every exception of a route with an error response."""
    app.add_exception_handler(QuireError, _on_quire_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(ClientDisconnected, _on_client_disconnected)
    app.add_exception_handler(ClientDisconnect, _on_client_disconnected)
    app.add_exception_handler(Exception, _on_quire_error)
