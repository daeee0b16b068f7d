"""/metrics: names that dashboards know, and what feeds them."""

import asyncio
import threading
import time

from pretend_client import PretendClient, http, info, pretend_app
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from scripted import Scripted, talking
from test_tool_api import ASK, BASE, PARSERS
from tool_texts import SERIES

from quire.errors import Overloaded
from quire.records import MetricsExporter, Registry
from quire.server.buckets import token_buckets
from quire.server.metrics import Metrics, Timings
from quire.server.tally import Tally
from quire.server_config import ServerConfig
from quire.types import EngineStats, RequestSummary

GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "cache_config_info",
)
COUNTERS = (
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "generation_tokens",
    "request_success",
    "admission_rejections",
    "prompt_tokens_cached",
    "prompt_tokens_by_source",
    "mm_cache_queries",
    "mm_cache_hits",
    "corrupted_requests",
)
HISTOGRAMS = (
    "iteration_tokens_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_max_num_generation_tokens",
    "request_num_preemptions",
    "request_prefill_kv_computed_tokens",
)


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(text):
    return {
        (
            sample.name.removeprefix("quire:"),
            *sorted(v for k, v in sample.labels.items() if k != "engine"),
        ): sample.value
        for family in families(text).values()
        for sample in family.samples
    }


async def settled(app):
    """Let what ended be counted, as the timer and the reporter would."""
    telemetry = app.state.service.telemetry
    telemetry.start()
    await telemetry.refresh()
    await telemetry.stop()


async def scrape(tmp_path, pretend, *bodies, registry=None):
    app = pretend_app(tmp_path, pretend, registry=registry)
    async with http(app) as client:
        for body in bodies:
            await client.post("/v1/completions", json=body)
        await settled(app)
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text


async def test_every_name_is_there_before_the_first_request(tmp_path):
    found = families(await scrape(tmp_path, PretendClient()))
    for kind, names in (("gauge", GAUGES), ("counter", COUNTERS), ("histogram", HISTOGRAMS)):
        for name in names:
            assert found[f"quire:{name}"].type == kind
            samples = found[f"quire:{name}"].samples
            assert all("model_name" in sample.labels and sample.labels["engine"] == "0" for sample in samples)


async def test_ended_requests_are_counted_by_model_and_reason(tmp_path):
    pretend = PretendClient(info("a"), info("b"))
    bodies = (
        {"prompt": "abc", "max_tokens": 5},
        {"prompt": "abc", "max_tokens": 5, "n": 2},
        {"prompt": ["abc", "d"], "max_tokens": 50, "stop": "wor", "model": "b", "stream": True},
    )
    found = values(await scrape(tmp_path, pretend, *bodies))
    assert found["request_success_total", "a", "length"] == 2
    assert found["request_success_total", "b", "stop"] == 2
    assert found["request_success_total", "b", "length"] == 0
    assert found["request_prompt_tokens_sum", "a"] == 6
    assert found["request_prompt_tokens_count", "b"] == 2
    assert found["request_generation_tokens_sum", "a"] == 15
    assert found["request_max_num_generation_tokens_sum", "a"] == 10
    assert found["request_prefill_kv_computed_tokens_sum", "a"] == 0  # three of three were cached
    assert found["request_params_n_sum", "a"] == 3
    assert found["request_params_max_tokens_sum", "a"] == 10
    assert found["time_to_first_token_seconds_count", "a"] == 2
    assert found["inter_token_latency_seconds_count", "a"] == 4 + 8
    assert found["e2e_request_latency_seconds_count", "b"] == 2
    assert found["request_queue_time_seconds_sum", "a"] == 0.5


async def test_refusals_are_counted_and_are_no_ended_requests(tmp_path):
    pretend = PretendClient()
    pretend.failure = (0, Overloaded("Full."))
    found = values(await scrape(tmp_path, pretend, {"prompt": "a"}))
    assert found["admission_rejections_total", "queue_full", "tiny"] == 1
    assert found["request_success_total", "abort", "tiny"] == 0
    assert found["e2e_request_latency_seconds_count", "tiny"] == 0


def test_figures_of_engines_become_gauges_and_totals():
    metrics = Metrics([info()])
    metrics.observe_engine(
        EngineStats(
            model="tiny",
            num_running=3,
            num_waiting=2,
            num_pages=64,
            num_pages_used=16,
            num_queried_tokens_total=10,
            num_cached_tokens_total=4,
            num_prompt_tokens_total=100,
            num_generated_tokens_total=50,
            num_preemptions_recompute_total=1,
            num_preemptions_swap_total=2,
            num_media_encoded_total=8,
            num_media_found_total=9,
            num_encoder_cache_bytes=1024,
            num_deferred=1,
            num_corrupted_total=6,
            iteration_tokens=(5, 7),
            ended_preemptions=(0, 3),
        )
    )
    metrics.observe_plugins([{"plugin": "p", "calls": 3, "errors": 1, "seconds": 0.5}])
    found = values(metrics.text()[0].decode())
    assert found["num_requests_running", "tiny"] == 3
    assert found["num_requests_waiting", "tiny"] == 2
    assert found["kv_cache_usage_perc", "tiny"] == 0.25
    assert found["prefix_cache_queries_total", "tiny"] == 10
    assert found["prefix_cache_hits_total", "tiny"] == 4
    assert found["prompt_tokens_total", "tiny"] == 100
    assert found["generation_tokens_total", "tiny"] == 50
    assert found["media_encoded_total", "tiny"] == 8
    assert found["encoder_cache_hits_total", "tiny"] == 9
    assert found["encoder_cache_bytes", "tiny"] == 1024
    assert (found["mm_cache_queries_total", "tiny"], found["mm_cache_hits_total", "tiny"]) == (17, 9)
    assert [found["num_requests_waiting_by_reason", reason, "tiny"] for reason in ("capacity", "deferred")] == [1, 1]
    assert (
        found["prompt_tokens_cached_total", "tiny"]
        == found["prompt_tokens_by_source_total", "local_cache_hit", "tiny"]
        == 4
    )
    assert found["prompt_tokens_by_source_total", "local_compute", "tiny"] == 6
    assert found["corrupted_requests_total", "tiny"] == 6
    assert (found["request_num_preemptions_count", "tiny"], found["request_num_preemptions_sum", "tiny"]) == (2, 3)
    assert found["num_preemptions_total", "recompute", "tiny"] == 1
    assert found["num_preemptions_total", "swap", "tiny"] == 2
    assert (found["iteration_tokens_total_count", "tiny"], found["iteration_tokens_total_sum", "tiny"]) == (2, 12)
    assert (found["plugin_calls_total", "p"], found["plugin_errors_total", "p"]) == (3, 1)


def test_times_of_a_request_go_into_their_histograms():
    metrics = Metrics([info()])
    summary = RequestSummary(
        request_id="r",
        model="tiny",
        adapters=(),
        finish_reason="stop",
        num_prompt_tokens=4,
        num_cached_tokens=0,
        num_generated_tokens=5,
        n=1,
        max_tokens=None,
        queue_s=1.0,
        prefill_s=2.0,
        decode_s=4.0,
        e2e_s=7.0,
        first_token_s=3.0,
    )
    metrics.finished(summary, Timings(token_gaps_s=(1.0, 1.0, 1.0, 1.0)))
    found = values(metrics.text()[0].decode())
    sums = {
        "request_queue_time_seconds": 1.0,
        "request_prefill_time_seconds": 2.0,
        "request_decode_time_seconds": 4.0,
        "request_inference_time_seconds": 6.0,
        "e2e_request_latency_seconds": 7.0,
        "time_to_first_token_seconds": 3.0,
        "request_time_per_output_token_seconds": 1.0,
        "inter_token_latency_seconds": 4.0,
    }
    assert {name: found[f"{name}_sum", "tiny"] for name in sums} == sums
    assert found["request_params_max_tokens_count", "tiny"] == 0


def test_a_tally_says_what_the_librarys_histogram_says(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1234.5)  # both tell when they were made
    bounds, values_seen = (0.5, 1, 2.5), (0.0, 0.5, 0.51, 1, 2, 2.5, 3, 1000)
    library, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("gap", "Help.", ["model_name"], registry=library, buckets=bounds)
    for model in ("a", "b"):
        histogram.labels(model)
    tally = Tally("gap", "Help.", bounds, ["a"])
    tally.add("b", ())
    ours.register(tally)
    assert generate_latest(ours) == generate_latest(library)
    for value in values_seen:
        histogram.labels("a").observe(value)
    tally.add("a", values_seen[:3])
    tally.add("a", values_seen[3:])
    assert generate_latest(ours) == generate_latest(library)


async def test_the_engines_are_asked_once_for_all_figures_so_that_none_is_lost(tmp_path):
    """Each answer has the steps since the last one."""
    pretend = PretendClient()
    steps = [(5,), (7,)]

    async def stats():
        return [EngineStats(model="tiny", iteration_tokens=steps.pop(0))]

    pretend.stats = stats
    app = pretend_app(tmp_path, pretend)
    telemetry = app.state.service.telemetry
    await telemetry.refresh()
    await telemetry.refresh()
    found = values(app.state.service.metrics.text()[0].decode())
    assert (found["iteration_tokens_total_count", "tiny"], found["iteration_tokens_total_sum", "tiny"]) == (2, 12)


def test_token_buckets_are_1_2_5_up_to_the_longest():
    assert token_buckets(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_buckets(1) == (1,)


async def test_exporters_and_events_of_plugins_hear_and_may_fail(tmp_path, caplog):
    heard = []

    class Exporter:
        def observe(self, stats):
            heard.append(stats.model)
            raise RuntimeError("no network")

    def finished(summary):
        heard.append(summary.finish_reason)
        raise RuntimeError("broken")

    record = MetricsExporter(name="x", build=lambda context: Exporter())
    registry = Registry(records={"quire_metrics_exporters": {"x": record}}, request_finished=finished)
    text = await scrape(tmp_path, PretendClient(), {"prompt": "a"}, {"prompt": "b"}, registry=registry)
    assert heard.count("length") == 2
    assert "tiny" in heard
    assert "no network" in caplog.text
    assert values(text)["request_success_total", "length", "tiny"] == 2


async def test_a_server_that_ends_waits_until_plugins_have_heard_of_every_request(tmp_path):
    hearing, go_on, heard = threading.Event(), threading.Event(), []

    def finished(summary):
        hearing.set()
        assert go_on.wait(60)
        heard.append(summary.finish_reason)

    app = pretend_app(tmp_path, registry=Registry(request_finished=finished))
    telemetry = app.state.service.telemetry
    telemetry.start()
    async with http(app) as client:
        await client.post("/v1/completions", json={"prompt": "a"})
        await asyncio.to_thread(hearing.wait, 60)
        await client.post("/v1/completions", json={"prompt": "b"})
    ending = asyncio.create_task(telemetry.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done()
    go_on.set()
    await ending
    assert heard == ["length", "length"]


async def test_a_plugin_that_hangs_misses_events_and_keeps_neither_metrics_nor_the_end_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr("quire.server.telemetry.WAITING_EVENTS", 2)
    monkeypatch.setattr("quire.server.telemetry.DRAIN_S", 0.0)
    go_on = threading.Event()
    app = pretend_app(tmp_path, registry=Registry(request_finished=lambda summary: go_on.wait(60)))
    telemetry = app.state.service.telemetry
    async with http(app) as client:
        for _ in range(6):
            await client.post("/v1/completions", json={"prompt": "a"})
            found = values((await client.get("/metrics")).text)
        await telemetry.refresh()
        rows = telemetry.plugin_calls()
    await telemetry.stop()
    go_on.set()
    assert found["request_success_total", "length", "tiny"] == 6
    assert rows[0]["dropped"] >= 3


async def test_a_report_that_has_just_ended_does_not_stop_the_event_loop(tmp_path, monkeypatch):
    """Who came between the end of a report and the next turn of the loop waited for what was done, without a turn."""
    app, end = pretend_app(tmp_path), asyncio.Event()
    telemetry = app.state.service.telemetry
    monkeypatch.setattr(asyncio, "to_thread", lambda *_: end.wait())
    telemetry.finished(None, None)
    telling = asyncio.create_task(telemetry.tell())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    end.set()
    await asyncio.sleep(0)  # now the report is done, and its callbacks are still to be called
    await telemetry.tell()
    await telling


async def test_the_timer_reads_statistics_while_the_application_lives(tmp_path):
    pretend = PretendClient()
    asked = asyncio.Event()
    stats = pretend.stats

    async def counted():
        asked.set()
        return await stats()

    pretend.stats = counted
    app = pretend_app(tmp_path, pretend)
    async with app.router.lifespan_context(app):
        await asyncio.wait_for(asked.wait(), 60)


async def test_names_begin_as_the_setting_says(tmp_path):
    async with http(pretend_app(tmp_path, config=ServerConfig(metrics_prefix="vllm:"))) as client:
        text = (await client.get("/metrics")).text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in text
    assert "quire:" not in text


async def test_openmetrics_are_given_to_who_accepts_them(tmp_path):
    async with http(pretend_app(tmp_path)) as client:
        accept = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5"
        answer = await client.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics(answer.text)}
    assert {"quire:request_success", "process_cpu_seconds", "python_info"} <= names


async def test_answers_in_which_calls_were_sought_are_counted(tmp_path):
    async with talking(tmp_path, Scripted(SERIES["hermes"], "No."), tool_parser=PARSERS["hermes"]) as client:
        for stream in (False, True):
            made = await client.chat.completions.create(**BASE, messages=[ASK], stream=stream)
            if stream:
                assert [chunk async for chunk in made]
        text = await client.get("http://test/metrics", cast_to=str)
    found = values(text)
    kind = ("tool_call_parser_invocations_total", "chat_completions")
    assert (
        found[(*kind, "non_streaming", "tiny", "tool_call")] == found[(*kind, "no_tool_call", "streaming", "tiny")] == 1
    )
