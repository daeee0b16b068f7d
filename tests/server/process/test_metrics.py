"""/metrics: names that dashboards know, and what feeds them."""

from dataclasses import replace

import pytest
from fake_client import PretendClient, http, info, pretend_app
from hook_rig import SUMMARY
from metrics_text import families, scrape, values
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from scripted_server import Scripted, talking
from tool_calls import ASK, BASE, PARSERS
from tool_texts import SERIES

from quire.errors import Overloaded
from quire.server.metrics.client_usage import MAX_CLIENTS, ClientUsages
from quire.server.metrics.metrics import Metrics, Timings
from quire.settings.server_config import ServerConfig
from quire.types import ClientUsage, EngineStats, RequestSummary, SpeculationStats
from quire.types.adapter_info import AdapterStats

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


@pytest.mark.parametrize("prefix", ["quire:", "vllm:"])
def test_drafts_have_vllms_names(prefix):
    metrics = Metrics([info()], prefix)
    names = ["num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"]
    before = families(metrics.text()[0].decode())
    assert all(not before[f"{prefix}spec_decode_{name}"].samples for name in names), "there is no drafter"
    drafts = SpeculationStats(num_drafts_total=5, num_draft_tokens_total=20, num_accepted_per_position=(4, 2, 0))
    metrics.observe_engine(EngineStats(model="tiny", speculation=drafts))
    found = families(metrics.text()[0].decode())
    samples = [found[f"{prefix}spec_decode_{name}"].samples for name in names]
    assert [each[0].value for each in samples[:3]] == [5, 20, 6]
    assert {each.labels["position"]: each.value for each in samples[3]} == {"0": 4, "1": 2, "2": 0}
    assert {each.name for each in samples[3]} == {f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"}
    assert all(each.labels["model_name"] == "tiny" for each in samples[3])


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


def test_the_client_whose_last_request_is_the_oldest_is_forgotten_first():
    usages, summary = ClientUsages(), SUMMARY
    for number in [*range(MAX_CLIENTS), 0, MAX_CLIENTS]:
        usages.finished(replace(summary, client=f"key:{number}"))
    found = usages.all()
    assert [usage.client for usage in found[:2]] == [f"key:{MAX_CLIENTS}", "key:0"]
    assert found[1] == ClientUsage("key:0", 2, 2 * summary.num_prompt_tokens, 2 * summary.num_generated_tokens)
    assert "key:1" not in {usage.client for usage in found}
    assert len(found) == MAX_CLIENTS


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


async def test_names_begin_as_the_setting_says(tmp_path):
    async with http(pretend_app(tmp_path, config=ServerConfig(metrics_prefix="vllm:"))) as client:
        text = (await client.get("/metrics")).text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 0.0' in text
    assert "quire:" not in text


async def test_openmetrics_are_sent_to_clients_that_accept_them(tmp_path):
    async with http(pretend_app(tmp_path)) as client:
        accept = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5"
        answer = await client.get("/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    found = list(openmetrics(answer.text))
    assert {"quire:request_success", "process_cpu_seconds", "python_info"} <= {family.name for family in found}
    assert {"quire:num_requests_running", "quire:request_success_total"} <= {
        sample.name for family in found for sample in family.samples
    }


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


def test_engine_processes_of_a_model_have_samples_of_their_own():
    metrics = Metrics([info("m")])
    adapters = AdapterStats(max_slots=8, num_loaded=3, running=("a",), num_running={"a": 2})
    for engine in (0, 1):
        metrics.observe_engine(EngineStats(model="m", engine=engine, num_running=1 + engine, adapters=adapters))
    found = families(metrics.text()[0].decode())
    running = {sample.labels["engine"]: sample.value for sample in found["quire:num_requests_running"].samples}
    assert running == {"0": 1, "1": 2}
    loaded = [s.labels["engine"] for s in found["quire:adapters"].samples if s.labels["tier"] == "device"]
    assert loaded == ["0", "1"]
    assert [sample.value for sample in found["quire:adapter_requests_running"].samples] == [4]
    assert {sample.labels["engine"] for sample in found["quire:request_success"].samples} == {"0"}
    metrics.remove_model("m")
    assert not families(metrics.text()[0].decode())["quire:num_requests_running"].samples
