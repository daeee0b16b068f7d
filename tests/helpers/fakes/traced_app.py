"""An application without an engine that traces into memory."""

from fake_client import PretendClient, http, served
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, format_trace_id

from quire.records import Registry
from quire.server.app import build_app
from quire.server.tracing.tracing import Tracing
from quire.settings.server_config import ServerConfig

TRACE, CLIENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FROM_CLIENT = {"traceparent": f"00-{TRACE}-{CLIENT_SPAN}-01"}


class Traced:
    """An application that traces into memory."""

    def __init__(self, folder, client=None, config=None, registry=None):
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.client = client or PretendClient()
        models = served(folder, self.client.infos)
        self.app = build_app(
            self.client, config or ServerConfig(), registry or Registry(), models, tracing=Tracing(provider)
        )

    async def post(self, path, body, headers=None):
        """Send one request; returns its response and all spans by name, when they have been made."""
        async with http(self.app) as client:
            response = await client.post(path, json=body, headers=headers or {})
        await self.app.state.service.telemetry.report_finished()
        return response, {span.name: span for span in self.exporter.get_finished_spans()}


def ids(span):
    """(trace, span, parent) in hexadecimal."""
    parent = None if span.parent is None else format_span_id(span.parent.span_id)
    return format_trace_id(span.context.trace_id), format_span_id(span.context.span_id), parent
