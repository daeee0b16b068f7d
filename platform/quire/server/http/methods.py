"""Responses where there is no route: error objects for unknown paths and methods, and answers to `OPTIONS`."""

from __future__ import annotations

import http

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from quire.errors import QuireError
from quire.server.http.errors import error_response
from quire.server.http.middleware import HeadAsGetMiddleware

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
MAX_SHOWN_PATH = 200


class _HttpError(QuireError):
    """An error of HTTP itself, such as an unknown path."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.type = http.HTTPStatus(status).phrase


def allowed_methods(scope: Scope) -> list[str]:
    """The methods of all routes at this path, with `OPTIONS`, and `HEAD` where there is `GET`."""
    routes = scope["app"].router.routes
    found = [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    if not found:
        return []
    return [*found, *(["HEAD"] if "GET" in found else []), "OPTIONS"]


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answer an `HTTPException`, also one that a router of a plugin raised."""
    if not isinstance(error, HTTPException):
        raise error
    path, methods = request.scope["path"][:MAX_SHOWN_PATH], ", ".join(allowed_methods(request.scope))
    message, headers = str(error.detail), dict(error.headers or {})
    if error.status_code == http.HTTPStatus.NOT_FOUND and not methods:
        message = f"Quire has no route {request.method} {path}."
    elif error.status_code == http.HTTPStatus.METHOD_NOT_ALLOWED and methods:
        headers = {**headers, "Allow": methods}
        if request.method == "OPTIONS":
            return Response(status_code=http.HTTPStatus.NO_CONTENT, headers=headers)
        message = f"Quire has no route {request.method} {path}; this path takes {methods}."
    response = error_response(_HttpError(error.status_code, message))
    response.headers.update(headers)
    return response


def install_methods(app: FastAPI) -> None:
    """Answer errors of the framework with error responses, and `HEAD` wherever there is `GET`."""
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_middleware(HeadAsGetMiddleware)
