"""Traces in the log, at other servers, and at a shutdown."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_client import PretendClient, http, served
from media_server import web_of_media
from opentelemetry import context, propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from traced_app import FROM_CLIENT, TRACE, Traced, ids

from quire.errors import Unprocessable
from quire.log_format import request_fields
from quire.media.fetching.fetcher import Fetcher
from quire.media.limits import Budget, MediaLimits
from quire.records import GateRequest, Registry, RequestGate
from quire.server.app import build_app
from quire.server.tracing.tracing import Tracing
from quire.settings.server_config import ServerConfig


async def test_records_of_a_plugin_that_runs_in_a_thread_have_the_ids_of_the_request(tmp_path):
    seen = []

    class Gate:
        def admit(self, request: GateRequest) -> GateRequest:
            seen.append((threading.current_thread() is threading.main_thread(), dict(request_fields.get())))
            return request

    registry = Registry(records={"quire_request_gates": {"g": RequestGate(name="g", build=lambda context: Gate())}})
    traced = Traced(tmp_path, config=ServerConfig(log_format="json"), registry=registry)
    response, spans = await traced.post("/v1/completions", {"prompt": "a"}, {**FROM_CLIENT, "x-request-id": "mine"})
    span_id = ids(spans["POST /v1/completions"])[1]
    assert seen == [(False, {"request_id": "mine", "trace_id": TRACE, "span_id": span_id})]
    assert "x-request-id" not in response.headers
    assert request_fields.get() == {}


async def test_an_exporter_that_hangs_does_not_hold_up_a_shutdown(tmp_path, caplog):
    never, exporting = threading.Event(), threading.Event()

    class Hanging(InMemorySpanExporter):
        def export(self, spans):
            exporting.set()
            never.wait(60)
            return super().export(spans)

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Hanging()))
    tracing = Tracing(provider)
    tracing.tracer.start_span("late").end()
    caplog.set_level(logging.WARNING)
    await tracing.shut_down(0.05)
    assert exporting.wait(60)
    assert caplog.messages == ["the last traces were not exported within 0.1 s; not waiting for them"]
    never.set()


async def test_a_shutdown_exports_what_is_left(tmp_path):
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    app = build_app(
        client := PretendClient(), ServerConfig(), Registry(), served(tmp_path, client.infos), Tracing(provider)
    )
    async with app.router.lifespan_context(app), http(app) as asking:
        await asking.post("/v1/completions", json={"prompt": "a"})
    assert {span.name for span in exporter.get_finished_spans()} >= {"POST /v1/completions", "text_completion tiny"}


@pytest.mark.parametrize("named", [True, False])
async def test_requests_for_media_are_traced_and_only_hosts_that_are_named_learn_of_it(tmp_path, named):
    traced = Traced(tmp_path)
    tracing = traced.app.state.service.telemetry.tracing
    limits = MediaLimits(private_addresses=True, allowed_domains=frozenset({"127.0.0.1"}) if named else frozenset())
    with web_of_media() as web, ThreadPoolExecutor(1) as threads:
        web.files["a"] = b"picture"
        web.targets["1"] = "../file/a"
        fetcher = Fetcher(limits, threads, trace=tracing.fetching)
        with tracing.tracer.start_as_current_span("request") as span:
            sent = propagate.extract({"baggage": "user=1"})
            token = context.attach({**context.get_current(), **sent})
            assert await fetcher.fetch(f"{web.url}/to/1", Budget(100)) == b"picture"
            context.detach(token)
        with pytest.raises(Unprocessable):
            await fetcher.fetch(f"{web.url}/none", Budget(100))
    to, file, _, failed = traced.exporter.get_finished_spans()
    assert [one.name for one in (to, file, failed)] == ["GET"] * 3
    assert to.parent.span_id == file.parent.span_id == span.get_span_context().span_id
    assert (to.kind, dict(file.attributes)) == (
        SpanKind.CLIENT,
        {
            "http.request.method": "GET",
            "url.scheme": "http",
            "server.address": "127.0.0.1",
            "server.port": web.port,
            "http.response.status_code": 200,
        },
    )
    assert (failed.attributes["error.type"], failed.status.status_code) == ("404", StatusCode.ERROR)
    assert ("traceparent" in web.headers) == named
    assert "baggage" not in web.headers
