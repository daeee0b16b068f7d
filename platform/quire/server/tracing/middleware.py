"""Traces HTTP requests: the span of each is a child of the client's, and the parent of what the request makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opentelemetry import context as otel_context, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.log_format import request_fields
from quire.server.http.auth import OPEN_PATHS
from quire.server.http.errors import SCOPE_ERROR
from quire.server.http.request_ids import REQUEST_ID_HEADER, header_id
from quire.server.tracing.request_spans import OPERATION, operation_of
from quire.server.tracing.tracing import Tracing

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
MAX_CHARS = 1024
"""Longest value of an attribute that clients choose."""


class TracingMiddleware:
    """Traces every HTTP request except probes and /metrics; log records of a request get the ids of its span."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app, self._tracing = app, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].removeprefix(scope.get("root_path", "")) in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = self._tracing.extract(headers)
        span = self._tracing.tracer.start_span(
            _method(scope), context, SpanKind.SERVER, dict(_request_attributes(scope, headers))
        )
        status: int | None = None

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        context = otel_context.set_value(OPERATION, operation_of(scope["path"]), context)
        token = otel_context.attach(trace.set_span_in_context(span, context))
        fields = request_fields.set({**request_fields.get(), **_log_fields(span)})
        try:
            await self._app(scope, receive, send_noting)
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))
            raise  # the framework answers
        finally:
            _finish(span, scope, status)
            request_fields.reset(fields)
            otel_context.detach(token)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else "HTTP"


def _request_attributes(scope: Scope, headers: Headers) -> Iterator[tuple[str, Any]]:
    yield "http.request.method", scope["method"] if scope["method"] in METHODS else "_OTHER"
    yield "url.scheme", scope.get("scheme", "http")
    yield "url.path", scope["path"][:MAX_CHARS]
    yield "network.protocol.version", scope.get("http_version", "1.1")
    if scope.get("server"):
        address, port = scope["server"]
        yield "server.address", address
        if port is not None:
            yield "server.port", port
    if scope.get("client"):
        yield "client.address", scope["client"][0]
    if agent := headers.get("user-agent"):
        yield "user_agent.original", agent[:MAX_CHARS]
    if request_id := header_id(headers):
        yield f"http.request.header.{REQUEST_ID_HEADER}", (request_id,)


def _log_fields(span: Span) -> dict[str, str]:
    context = span.get_span_context()
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}


def _finish(span: Span, scope: Scope, status: int | None) -> None:
    """End the span, with the route and the status. Errors of clients do not make it a failed one."""
    route = getattr(scope.get("route"), "path", None)
    if route is not None:
        span.update_name(f"{_method(scope)} {route}")
        span.set_attribute("http.route", route)
    if status is not None:
        span.set_attribute("http.response.status_code", status)
    error = scope.get(SCOPE_ERROR)
    if status is not None and status >= 400:
        span.set_attribute("error.type", str(status) if error is None else type(error).__name__)
    if status is not None and status >= 500:
        span.set_status(Status(StatusCode.ERROR, None if error is None else error.message))
    span.end()
