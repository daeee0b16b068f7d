"""What is answered where no route is: error objects for unknown paths and methods, `OPTIONS`, and `HEAD` as `GET`."""

from __future__ import annotations

import http

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.errors import QuireError
from quire.server.errors import error_response

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
MAX_SHOWN_PATH = 200


class _HttpError(QuireError):
    """An error that only HTTP knows."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.type = http.HTTPStatus(status).phrase


class HeadAsGet:
    """ASGI middleware that answers `HEAD` as `GET`, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; of an answer to `HEAD` only the head."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self.app({**scope, "method": "GET"}, receive, without_body)


def allowed_methods(scope: Scope) -> list[str]:
    """The methods that the application has routes for at this path, with those that follow from them."""
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
    """Also what routers of plugins raise."""
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
    """Make every error that the framework raises an answer in the error shape, and `HEAD` work wherever `GET` does."""
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_middleware(HeadAsGet)
