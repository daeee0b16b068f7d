"""A real server under load: its metrics on the dashboard and in `platform top`, its traces at a collector, its log."""

import io
import json
import math
import time
from contextlib import redirect_stdout
from types import SimpleNamespace

import httpx
import pytest
from monitoring_files import queries
from promql import Scrapes
from serving import serving
from trace_collector import trace_collector

from quire.cli import main
from quire.hooks.demos import from_demo
from quire.hooks.registry import load
from quire.settings.model_config import ModelConfig

pytestmark = pytest.mark.process

TRACE = "0af7651916cd43dd8448eb211c80319c"
FROM_CLIENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "x-request-id": "mine"}
BODY = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12, "stream": True}
PREDICTED = {"prediction": {"type": "content", "content": "The capital of France is Paris."}}


@pytest.fixture(scope="module")
def observed():
    """What was seen of a server that answered three chats, two with an adapter, refused a request, and ended."""
    folder = from_demo(ModelConfig(model="demo-chat"), load()).model
    flags = ("--log-format", "json", "--enable-lora", "--lora-modules", f"pirate={folder}/adapters/pirate")
    flags += ("--speculative-config", '{"method": "ngram", "adaptive": false}')
    seen = SimpleNamespace()
    with trace_collector() as (collector, seen.spans):
        variables = {"OTEL_SERVICE_NAME": "observed"}
        with serving("demo-chat", *flags, "--otlp-traces-endpoint", collector, env=variables) as server:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                _chat(client, "pirate")
                first = _settled(client, 1)
                _chat(client, "demo-chat", FROM_CLIENT)
                _chat(client, "pirate", FROM_CLIENT)
                seen.refused = client.post("/v1/chat/completions", json={"messages": 1})
                seen.scrapes = Scrapes.from_texts([(0.0, first), (60.0, _settled(client, 3))])
            seen.pid = server.process.pid
            with redirect_stdout(io.StringIO()) as printed:
                seen.top_status = main(["top", "--url", f"{server.url}/v1", "--once", "--interval", "0"])
            seen.top = printed.getvalue().splitlines()
            seen.status = server.stop()
            seen.lines = server.output().splitlines()
    return seen


def _chat(client, model, headers=None):
    reply = client.post("/v1/chat/completions", json={**BODY, **PREDICTED, "model": model}, headers=headers)
    assert reply.text.endswith("data: [DONE]\n\n")


SETTLED = (
    'request_success_total{finished_reason=~"stop|length"}',
    "num_requests_running",
    "prompt_tokens_total",
    "request_prompt_tokens_sum",
)


def _settled(client, num_requests):
    """The body of /metrics when it has the statistics of these requests: they are read about once a second."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        text = client.get("/metrics").text
        found = Scrapes.from_texts([(0.0, text)])
        sums = [found.evaluate(f"sum(quire:{name})")[frozenset()] for name in SETTLED]
        if sums == [num_requests, 0, sums[3], sums[3]]:
            return text
        time.sleep(0.05)  # polling an outside process, not ordering anything
    raise AssertionError(text)


def test_every_query_of_the_dashboard_returns_series_from_a_served_load(observed):
    found = {(title, query): observed.scrapes.evaluate(query) for title, query in queries()}
    assert [key for key, values in found.items() if not values or any(map(math.isnan, values.values()))] == []


def test_top_prints_one_frame_with_the_model_and_its_adapter(observed):
    assert observed.top_status == 0
    (model,) = [line.split() for line in observed.top if line.startswith("demo-chat")]
    assert (model[1:3], model[-2:]) == (["0", "0"], ["3", "0"])
    (adapter,) = [line.split() for line in observed.top if line.startswith("pirate")]
    assert adapter == ["pirate", "demo-chat", "0", "0.0", "2"]


def test_every_line_of_the_log_is_an_object_with_the_ids_of_its_request(observed):
    assert observed.status == 0
    entries = [json.loads(line) for line in observed.lines]
    assert {observed.pid} < {entry["pid"] for entry in entries}, "the engine process logs too"
    loggers = {entry["logger"] for entry in entries}
    assert loggers >= {"quire", "quire.server", "quire.engine_process", "uvicorn.error", "uvicorn.access"}
    assert any(entry["message"].startswith("Quire is ready at http://127.0.0.1:") for entry in entries)
    access = [entry for entry in entries if entry.get("path") == "/v1/chat/completions"]
    assert [(entry["status"], entry["request_id"] == "mine", entry["trace_id"] == TRACE) for entry in access] == [
        (200, False, False),
        (200, True, True),
        (200, True, True),
        (400, False, False),
    ]


def test_the_collector_gets_the_spans_of_all_requests_the_last_ones_at_the_shutdown(observed):
    assert {service for service, _ in observed.spans} == {"observed"}
    spans = [span for _, span in observed.spans if span.trace_id.hex() == TRACE]
    names = {span.span_id: span.name for span in spans}
    parents = sorted((span.name, names[span.parent_span_id]) for span in spans if span.parent_span_id in names)
    phases = [(phase, "chat demo-chat") for phase in ("decode", "prefill", "queue")]
    assert parents == sorted([*phases, *phases, *[("chat demo-chat", "POST /v1/chat/completions")] * 2])
    exchanges = [span for _, span in observed.spans if span.name == "POST /v1/chat/completions"]
    assert len(exchanges) == 4
