"""What the log of a server says: one format, the models, their work, a warning for an open server."""

import io
import logging
from contextlib import closing

import pytest

from quire.commands.serve import warn_of_open_server
from quire.engine.build import build_engine
from quire.engine_process.model_summary import summary
from quire.hooks.registry import load
from quire.server.metrics.throughput_log import ThroughputLog
from quire.server.process.serve import _uvicorn_settings
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig
from quire.types import EngineStats, SpeculationStats
from quire.types.adapter_info import AdapterInfo
from quire_models.loading.weights import LoadingProgress
from quire_testing.tiny import tiny_llama


@pytest.fixture(autouse=True)
def info(caplog):
    caplog.set_level(logging.INFO)


def stats(**figures):
    return EngineStats(model="m", num_pages=10, **figures)


def test_a_busy_model_gets_a_line_with_its_throughput_and_an_idle_one_none(caplog):
    now = [0.0]
    throughput = ThroughputLog(interval_s=10, clock=lambda: now[0])
    throughput.observe(stats())
    now[0] = 9.0
    throughput.observe(stats(num_steps_total=5))
    assert caplog.messages == []
    now[0] = 10.0
    busy = {"num_steps_total": 9, "num_prompt_tokens_total": 100, "num_generated_tokens_total": 50}
    throughput.observe(stats(**busy, num_queried_tokens_total=100, num_cached_tokens_total=25, num_pages_used=1))
    assert caplog.messages == [
        "m: prompt throughput 10.0 tokens/s, generation throughput 5.0 tokens/s, 0 requests running, 0 waiting, "
        "KV cache usage 10.0 %, prefix cache hit rate 25.0 %"
    ]
    now[0] = 20.0
    drafts = SpeculationStats(num_drafts_total=4, num_draft_tokens_total=16, num_accepted_per_position=(3, 1))
    throughput.observe(stats(**{**busy, "num_steps_total": 10}, speculation=drafts))
    assert caplog.messages[-1].endswith("draft acceptance rate 25.0 %")
    now[0] = 30.0
    throughput.observe(stats(**{**busy, "num_steps_total": 11}, speculation=drafts))
    assert "draft" not in caplog.messages[-1]
    caplog.clear()
    now[0] = 40.0
    throughput.observe(
        stats(**{**busy, "num_steps_total": 11}, num_queried_tokens_total=100, num_cached_tokens_total=25)
    )
    now[0] = 50.0
    throughput.observe(stats(num_steps_total=1))  # the process that runs the models was restarted
    assert caplog.messages == []


def test_lines_of_several_engine_processes_name_them(caplog):
    now = [0.0]
    throughput = ThroughputLog(interval_s=10, clock=lambda: now[0])
    for now[0] in (0.0, 10.0):
        for engine in (0, 1):
            throughput.observe(stats(engine=engine, num_running=1 + engine))
    assert [message.partition(": ")[0] for message in caplog.messages] == ["m (engine 0)", "m (engine 1)"]
    throughput.forget("m")
    throughput.observe(stats(engine=1, num_running=1))
    assert len(caplog.messages) == 2


def test_loading_is_reported_every_few_seconds(caplog):
    now = [0.0]
    progress = LoadingProgress(2_000_000_000, clock=lambda: now[0])
    progress.advance(500_000_000)
    now[0] = 5.0
    progress.advance(500_000_000)
    now[0] = 6.0
    progress.advance(500_000_000)
    assert caplog.messages == ["loading weights: 50 % of 2.00 B parameters"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_a_bar_in_place_of_the_log(caplog, monkeypatch):
    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("quire_models.loading.weights.BAR_DELAY_S", 0)
    with closing(LoadingProgress(2_000_000_000, clock=lambda: now[0])) as progress:
        now[0] = 5.0
        progress.advance(500_000_000)
        shown = terminal.getvalue()
    assert "loading weights:" in shown
    assert "2.00G" in shown
    assert not caplog.messages


def test_a_loaded_model_is_described(tmp_path):
    config = ModelConfig(model=str(tiny_llama(tmp_path / "tiny")), device="cpu", num_pages=20)
    engine = build_engine(config, load(["llama"]))
    try:
        text = summary(engine.info, config)
    finally:
        engine.close()
    assert text.startswith("LlamaForCausalLM, ")
    assert " on cpu with " in text
    assert "context 320 tokens, KV cache " in text
    assert text.endswith(" for 320 tokens")


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "0.0.0.0", "api_key": ("k",)}, False),
        ({"host": "127.0.0.1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "::1"}, False),
    ],
)
def test_an_address_that_others_can_reach_without_a_key_gets_a_warning(caplog, settings, warns):
    warn_of_open_server(ServerConfig(**settings))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warns


def test_the_http_library_logs_through_our_handlers():
    assert _uvicorn_settings(ServerConfig())["log_config"] is None


def test_adapters_that_come_and_go_are_logged(caplog):
    from concurrent.futures import Future

    from quire.engine_process.adapter_messages import _log_loaded
    from quire.errors import BadRequest

    wanted = AdapterInfo(name="a", model="m", path="/adapters/a")
    done, failed = Future(), Future()
    done.set_result(AdapterInfo(name="a", model="m", path="/adapters/a", kind="LORA", rank=8, num_bytes=1 << 20))
    failed.set_exception(BadRequest("The rank is too large."))
    _log_loaded(wanted, done)
    _log_loaded(wanted, failed)
    assert caplog.messages == [
        "adapter a of m is loaded: LORA, rank 8, 1.0 MiB, /adapters/a",
        "adapter a of m could not be loaded: The rank is too large.",
    ]
