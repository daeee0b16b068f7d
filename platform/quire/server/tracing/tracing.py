"""Makes the spans of one server: of HTTP requests in both directions, and of engine requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from opentelemetry import context as otel_context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode

from quire import __version__
from quire.errors import QuireError
from quire.server.process.plugin_threads import PluginThreads
from quire.server.tracing.request_spans import EndedRequest, RequestScope, record_spans
from quire.types import Request, RequestSummary

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger("quire.server")

TRACER = "quire"


@dataclass(frozen=True)
class FetchSpan:
    """The span of one request for a medium. headers: propagate its context to the server that is asked."""

    span: trace.Span
    headers: Mapping[str, str] = field(default_factory=dict)

    def answered(self, status: int) -> None:
        """Record the status of the response."""
        self.span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self.span.set_attribute("error.type", str(status))
            self.span.set_status(Status(StatusCode.ERROR))


class Tracing:
    """The tracer of a server. All methods but `shut_down` are cheap: spans are exported in another thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer = provider.get_tracer(TRACER, __version__)

    def extract(self, headers: Mapping[str, str]) -> Context:
        """The context that a client sent (W3C trace context, or what OTEL_PROPAGATORS lists)."""
        return propagate.extract(headers, Context())

    def scope(self, streams: bool) -> RequestScope:
        """The context of the requests that the current task is about to make; kept until they end."""
        return RequestScope(otel_context.get_current(), streams)

    def record(
        self,
        scope: RequestScope,
        request: Request,
        summary: RequestSummary,
        times_ns: tuple[int, int],
        error: QuireError | None,
    ) -> None:
        """Make the spans of an ended engine request. times_ns: its begin and end as Unix times. error: its failure."""
        begin_ns, end_ns = times_ns
        try:
            record_spans(
                self.tracer,
                EndedRequest(
                    scope=scope, request=request, summary=summary, begin_ns=begin_ns, end_ns=end_ns, error=error
                ),
            )
        except Exception:
            log.exception("the spans of a request could not be made")

    @contextmanager
    def fetching(self, scheme: str, host: str, port: int) -> Iterator[FetchSpan]:
        """Around a GET request of the server itself."""
        attributes: dict[str, str | int] = {
            "http.request.method": "GET",
            "url.scheme": scheme,
            "server.address": host,
            "server.port": port,
        }
        with self.tracer.start_as_current_span("GET", kind=SpanKind.CLIENT, attributes=attributes) as span:
            headers: dict[str, str] = {}
            propagate.inject(headers)
            headers.pop("baggage", None)  # what clients send along is not for other servers
            yield FetchSpan(span, headers)

    async def shut_down(self, timeout_s: float) -> None:
        """Export the remaining spans, for at most `timeout_s`; later spans are dropped."""
        ending = PluginThreads("traces", threads=1, waiting=1).submit(self._provider.shutdown)
        try:
            await asyncio.wait_for(asyncio.wrap_future(ending), timeout_s)
        except TimeoutError:
            log.warning("the last traces were not exported within %.1f s; not waiting for them", timeout_s)
