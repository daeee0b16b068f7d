"""Which adapters are in host memory, and how the others come back from disk."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from quire.errors import BadRequest, ConfigError
from quire.settings.model_config import ModelConfig


def test_the_least_recently_used_leaves_memory_and_comes_back_when_it_is_wanted(benches: Any) -> None:
    bench = benches(max_cpu_loras=2)
    bench.load("a", "b")
    bench.end(bench.look_until(used := bench.ask("a")) or used)
    bench.load("c")
    assert bench.tiers() == {"a": "device", "b": "disk", "c": "host"}
    bench.runtime.wait_for("release b")
    back = bench.ask("b")
    assert bench.look() == [], "it is read beside the steps"
    bench.look_until(back)
    assert bench.tiers() == {"a": "disk", "b": "device", "c": "host"}
    assert bench.adapters.stats().num_reads_total == 1
    assert bench.adapters.stats().num_evictions_total == 2


def test_a_request_that_waits_for_the_disk_does_not_delay_others(benches: Any) -> None:
    bench = benches(max_loras=2, max_cpu_loras=2)
    bench.load("a", "b", "c")
    bench.runtime.held_back["a"] = threading.Event()
    slow = bench.ask("a")
    bench.look()
    passing = bench.ask("c")
    assert bench.look() == [passing]
    bench.runtime.held_back["a"].set()
    bench.look_until(slow)


def test_what_is_pinned_stays_in_memory(benches: Any) -> None:
    bench = benches(max_cpu_loras=2)
    bench.load("a", pinned=True)
    bench.load("b", "c")
    assert bench.tiers() == {"a": "host", "b": "disk", "c": "host"}
    with pytest.raises(BadRequest, match="No more than 1 adapters can be pinned"):
        bench.load("d", pinned=True)
    assert list(bench.states()) == ["a", "b", "c"]
    bench.load("a", pinned=True), "its own pin does not count"
    bench.adapters.registry.unload("a").result(60)
    bench.load("d", pinned=True)


def test_all_requests_finish_when_host_memory_is_full_of_waiting_and_running_adapters(benches: Any) -> None:
    bench = benches(max_loras=2, max_cpu_loras=2)
    bench.load(*"abcdef")
    asked = [bench.ask(*names) for names in ("a", "bc", "d", "ef", "a", "ce")]
    for _ in range(200):
        bench.look()
        bench.settle()
        for request_id in list(bench.running):
            bench.end(request_id)
        if not bench.waiting:
            break
    assert sorted(bench.begun) == sorted(asked)
    assert bench.runtime.most_live <= 2 + 2, "two places, and two that are being let go of"


def test_two_requests_with_two_adapters_each_do_not_deadlock(benches: Any) -> None:
    bench = benches(max_loras=2, max_cpu_loras=2)
    bench.load("a", "c", "d")
    hold = bench.runtime.held_back["b"] = threading.Event()
    loading = bench.adapters.registry.load("b", bench.folder("b"))
    first = bench.ask("a", "b")
    bench.look()
    second = bench.ask("c", "d")
    bench.look()
    assert bench.tiers()["d"] == "host", "half of what the second needs is there"
    hold.set()
    loading.result(60)
    bench.look_until(first)
    bench.end(first)
    bench.look_until(second)


def test_a_pin_does_not_outlive_its_adapter(benches: Any) -> None:
    bench = benches(max_cpu_loras=3)
    bench.load("a", pinned=True)
    running, waiting = bench.ask("a"), bench.ask("a")
    bench.look()
    bench.load("a")
    assert [(info.state, info.pinned) for info in bench.infos()] == [("retired", False), ("ready", False)]
    bench.load("b", pinned=True)
    bench.load("c", pinned=True)
    for request_id in (running, waiting):
        bench.end(request_id)
    bench.settle()
    bench.load("d")
    assert bench.tiers() == {"a": "disk", "b": "host", "c": "host", "d": "host"}


def test_files_that_changed_are_not_taken_for_those_that_were_loaded(benches: Any) -> None:
    bench = benches(max_cpu_loras=1)
    bench.load("a", "b")
    bench.folder("a", "other weights")
    wants = bench.ask("a")
    bench.look_until(wants)
    assert "have changed since it was loaded; load it again" in bench.errors[wants].message
    assert bench.states() == {"a": "failed", "b": "ready"}
    with pytest.raises(BadRequest, match="have changed"):
        bench.ask("a")
    bench.load("a", replacing=False)
    bench.look_until(again := bench.ask("a"))
    assert again in bench.running


def test_more_slots_than_adapters_in_host_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="--max-cpu-loras must be at least --max-loras"):
        ModelConfig(max_loras=4, max_cpu_loras=3)
