"""Event hooks: models that start and stop, requests that end."""

import json
from dataclasses import replace
from pathlib import Path

from fake_client import info
from hook_rig import SUMMARY
from plugin_site import PluginSite

from quire.hooks.registry import load
from quire.types import UsageRecord


def test_hook_engine_started_and_stopping_keep_a_file_per_model(tour: PluginSite, tmp_path: Path) -> None:
    registry = load(["ready-file"], {"ready-file": {"folder": str(tmp_path)}})
    registry.engine_started(info("org/tiny"))
    assert [p.name for p in tmp_path.glob("*.ready")] == ["org--tiny.ready"]
    registry.engine_stopping(info("org/tiny"))
    registry.engine_stopping(info("org/tiny"))
    assert not list(tmp_path.glob("*.ready"))


def test_hook_engine_stopping_gets_the_options_of_its_own_plugin(tour: PluginSite, tmp_path: Path) -> None:
    ready = tmp_path / "tiny.ready"
    ready.touch()
    load(["ready-file"], {"ready-file": {"folder": str(tmp_path / "elsewhere")}}).engine_stopping(info("tiny"))
    assert ready.exists()


def test_hook_request_finished_appends_a_line_per_request(tour: PluginSite, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    registry = load(["request-log"], {"request-log": {"path": str(path)}})
    registry.request_finished(SUMMARY)
    registry.request_finished(SUMMARY)
    assert [json.loads(line)["model"] for line in path.read_text().splitlines()] == ["tiny", "tiny"]


def test_hook_usage_recorded_adds_to_a_bill(tour: PluginSite, tmp_path: Path) -> None:
    path = tmp_path / "bill.json"
    registry = load(["bill"], {"bill": {"path": str(path), "input_price": 1.0, "output_price": 2.0}})
    one = UsageRecord(
        id="r1", ended=0.0, tenant="a", model="tiny", adapter="", endpoint="/v1/completions", outcome="finished",
        input_tokens=5_000_000, cached_tokens=3_000_000, output_tokens=1_000_000,
    )  # fmt: skip
    registry.usage_recorded([one, replace(one, id="r2", tenant="b", output_tokens=0)])
    registry.usage_recorded([one])
    assert json.loads(path.read_text()) == {"a": 8.0, "b": 2.0}
