"""Traces: which spans a request makes, whose children they are, and what they say."""

import asyncio

import pytest
from fake_client import PretendClient, classifier, embedder, http, info, served
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode
from traced_app import CLIENT_SPAN, FROM_CLIENT, TRACE, Traced, ids

from quire.errors import EngineDied, Overloaded
from quire.records import Registry
from quire.server.app import build_app
from quire.server.tracing.request_spans import operation_of
from quire.settings.server_config import ServerConfig
from quire.types.adapter_info import AdapterInfo

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}

VLLMS = {
    "gen_ai.request.id",
    "gen_ai.latency.e2e",
    "gen_ai.latency.time_in_queue",
    "gen_ai.latency.time_to_first_token",
}
"""Attributes that vLLM records and the conventions do not have."""


async def test_a_streamed_chat_with_an_adapter_is_traced_under_the_span_of_its_client(tmp_path):
    traced = Traced(tmp_path)
    traced.client.adapters.infos["pirate"] = AdapterInfo(name="pirate", model="tiny", path="/", state="ready")
    body = {**CHAT, "model": "pirate", "stream": True, "temperature": 0.5, "seed": 3, "stop": ["never"]}
    response, spans = await traced.post("/v1/chat/completions", body, {**FROM_CLIENT, "x-request-id": "mine"})
    assert response.text.endswith("data: [DONE]\n\n")
    assert set(spans) == {"POST /v1/chat/completions", "chat tiny", "queue", "prefill", "decode"}
    exchange, request = spans["POST /v1/chat/completions"], spans["chat tiny"]
    assert ids(exchange)[::2] == (TRACE, CLIENT_SPAN)
    assert ids(request)[::2] == (TRACE, ids(exchange)[1])
    assert all(ids(spans[name])[::2] == (TRACE, ids(request)[1]) for name in ("queue", "prefill", "decode"))
    assert (exchange.kind, request.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert exchange.attributes["http.route"] == exchange.attributes["url.path"] == "/v1/chat/completions"
    assert exchange.attributes["http.response.status_code"] == 200
    assert exchange.attributes["http.request.header.x-request-id"] == ("mine",)
    said = dict(request.attributes)
    assert said.pop("gen_ai.request.id").startswith("chatcmpl-mine-0-")
    assert [said.pop(name) > 0 for name in sorted(VLLMS - {"gen_ai.request.id"})] == [True] * 3
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": "pirate",
        "gen_ai.response.model": "tiny",
        "quire.adapters": ("pirate",),
        "quire.adapter_weights": (1.0,),
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stop_sequences": ("never",),
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": len(traced.client.requests[0].prompt.token_ids),
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ("length",),
    }
    known = {value for name, value in vars(gen_ai_attributes).items() if name.isupper()}
    assert {name for name in request.attributes if name.startswith("gen_ai.")} <= known | VLLMS


async def test_the_phases_of_a_request_follow_each_other_within_it(tmp_path):
    _, spans = await Traced(tmp_path).post("/v1/completions", {"prompt": "abc", "max_tokens": 5})
    request = spans["text_completion tiny"]
    times = [(spans[name].start_time, spans[name].end_time) for name in ("queue", "prefill", "decode")]
    assert request.start_time == times[0][0]
    assert times[0][1] == times[1][0]
    assert times[1][1] == times[2][0]
    assert times[2][1] <= request.end_time
    assert all(begin <= end for begin, end in times)


async def test_without_a_context_of_a_client_each_request_begins_a_trace(tmp_path):
    traced = Traced(tmp_path)
    await traced.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2})
    await traced.post("/v1/completions", {"prompt": "c", "max_tokens": 2}, {"traceparent": "00-no-context-01"})
    spans = traced.exporter.get_finished_spans()
    exchanges = [span for span in spans if span.kind == SpanKind.SERVER]
    assert [span.parent for span in exchanges] == [None, None]
    assert exchanges[0].context.trace_id != exchanges[1].context.trace_id
    requests = [span for span in spans if span.name == "text_completion tiny"]
    assert [span.parent.span_id for span in requests] == [exchanges[n].context.span_id for n in (0, 0, 1)]


async def test_a_trace_that_the_client_does_not_sample_is_not_recorded(tmp_path):
    _, spans = await Traced(tmp_path).post(
        "/v1/completions", {"prompt": "a"}, {"traceparent": f"00-{TRACE}-{CLIENT_SPAN}-00"}
    )
    assert spans == {}


@pytest.mark.parametrize(
    ("error", "status", "fails"),
    [(EngineDied("The engine process ended."), 503, True), (Overloaded("Full."), 503, False)],
)
async def test_errors_are_named_and_a_request_that_was_not_accepted_has_no_phases(tmp_path, error, status, fails):
    client = PretendClient()
    client.failure = (2 if fails else 0, error)
    response, spans = await Traced(tmp_path, client).post("/v1/completions", {"prompt": "a", "max_tokens": 9})
    assert response.status_code == status
    exchange = spans.pop("POST /v1/completions")
    assert exchange.attributes["error.type"] == type(error).__name__
    assert (exchange.status.status_code, exchange.status.description) == (StatusCode.ERROR, error.message)
    assert bool(spans) == fails
    if fails:
        request = spans["text_completion tiny"]
        assert request.attributes["error.type"] == "EngineDied"
        assert request.attributes["gen_ai.response.finish_reasons"] == ("error",)
        assert (request.status.status_code, request.status.description) == (StatusCode.ERROR, error.message)


async def test_errors_of_clients_do_not_make_a_span_a_failed_one(tmp_path):
    traced = Traced(tmp_path, config=ServerConfig(api_key=("secret",)))
    _, spans = await traced.post("/v1/completions", {"prompt": "a"})
    assert (spans["POST"].attributes["http.response.status_code"], spans["POST"].attributes["error.type"]) == (
        401,
        "401",
    )
    _, spans = await traced.post("/v1/completions", {"prompt": 3.5}, {"authorization": "Bearer secret"})
    exchange = spans["POST /v1/completions"]
    assert (exchange.attributes["error.type"], exchange.status.status_code) == ("MalformedBody", StatusCode.UNSET)


async def test_probes_and_metrics_are_not_traced_and_unknown_methods_have_one_name(tmp_path):
    traced = Traced(tmp_path)
    async with http(traced.app) as client:
        for path in ("/health", "/health/live", "/metrics"):
            await client.get(path)
        assert traced.exporter.get_finished_spans() == ()
        await client.request("BREW", "/v1/models")
    (span,) = traced.exporter.get_finished_spans()
    assert (span.name, span.attributes["http.request.method"]) == ("HTTP /v1/models", "_OTHER")


async def test_pooled_prompts_have_the_operation_of_their_task_and_no_decoding(tmp_path):
    traced = Traced(tmp_path, PretendClient(embedder(), classifier("no", "yes")))
    _, spans = await traced.post("/v1/embeddings", {"input": "a", "model": "embedder", "dimensions": 4})
    request = spans["embeddings embedder"]
    assert request.attributes["gen_ai.embeddings.dimension.count"] == 4
    assert "gen_ai.usage.output_tokens" not in request.attributes
    assert {"queue", "prefill"} == set(spans) - {request.name, "POST /v1/embeddings"}
    _, spans = await traced.post("/classify", {"input": "a", "model": "classifier"})
    assert spans["classify classifier"].attributes["gen_ai.operation.name"] == "classify"


async def test_a_client_that_goes_away_leaves_an_aborted_request(tmp_path):
    client = PretendClient()
    client.hold = asyncio.Event()
    traced = Traced(tmp_path, client)
    service = traced.app.state.service
    sending = asyncio.create_task(traced.post("/v1/completions", {"prompt": "a", "max_tokens": 50}))
    await client.progress.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await service.telemetry.report_finished()
    spans = {span.name: span for span in traced.exporter.get_finished_spans()}
    assert spans["text_completion tiny"].attributes["gen_ai.response.finish_reasons"] == ("abort",)


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/messages", "chat"),
        ("/v1/responses", "chat"),
        ("/api/chat", "chat"),
        ("/v1/completions", "text_completion"),
        ("/api/generate", "text_completion"),
        ("/v1/audio/transcriptions", "transcription"),
    ],
)
def test_the_operation_is_that_of_the_route(path, operation):
    assert operation_of(path) == operation


async def test_an_application_without_tracing_has_no_middleware_for_it(tmp_path):
    plain = build_app(client := PretendClient(info()), ServerConfig(), Registry(), served(tmp_path, client.infos))
    assert "TracingMiddleware" not in {middleware.cls.__name__ for middleware in plain.user_middleware}
    assert plain.state.service.telemetry.tracing is None
