"""Loading, replacing and unloading adapters while requests use them."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from adapter_fixture import Bench

from quire.errors import BadRequest, NotFound


def test_requests_wait_for_an_adapter_that_is_loading_and_others_pass(bench: Bench) -> None:
    bench.load("b")
    hold = bench.runtime.held_back["a"] = threading.Event()
    loading = bench.adapters.registry.load("a", bench.folder("a"))
    waits, passes = bench.ask("a"), bench.ask("b")
    assert bench.look() == [passes]
    assert bench.states() == {"b": "ready", "a": "loading"}
    assert bench.tiers()["a"] is None
    bench.end(passes)
    hold.set()
    assert loading.result(60).state == "ready"
    assert bench.look() == [waits]


def test_a_failed_load_changes_nothing_and_fails_the_requests_that_waited(bench: Bench) -> None:
    hold = bench.runtime.held_back["a"] = threading.Event()
    bench.runtime.bad.add("a")
    loading = bench.adapters.registry.load("a", bench.folder("a"))
    waits = bench.ask("a")
    bench.look()
    hold.set()
    with pytest.raises(BadRequest, match="a is bad"):
        loading.result(60)
    bench.look()
    assert bench.errors[waits].message == "a is bad."
    assert bench.infos() == []
    with pytest.raises(NotFound, match=r"`a` is not loaded\. Adapters loaded: none"):
        bench.ask("a")
    assert bench.adapters.stats().num_load_failures_total == 1


def test_a_failed_background_load_is_shown_until_the_adapter_is_loaded_or_unloaded(bench: Bench) -> None:
    bench.runtime.bad.add("a")
    with pytest.raises(BadRequest):
        bench.load("a", keep_failure=True)
    (info,) = bench.infos()
    assert (info.state, info.error, info.tier) == ("failed", "a is bad.", None)
    with pytest.raises(BadRequest, match="`a` could not be loaded: a is bad"):
        bench.ask("a")
    bench.runtime.bad.clear()
    bench.load("a", replacing=False)
    assert bench.states() == {"a": "ready"}
    bench.adapters.registry.unload("a").result(60)
    assert bench.infos() == []


def test_failures_that_are_shown_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.engine.adapters.registry.MAX_FAILED", 2)
    bench.runtime.bad |= set("abc")
    for name in "abc":
        with pytest.raises(BadRequest):
            bench.load(name, keep_failure=True)
    assert list(bench.states()) == ["b", "c"]


def test_a_rank_above_the_largest_is_refused_and_let_go_of(bench: Bench) -> None:
    with pytest.raises(BadRequest, match="has rank 128; the largest allowed is 64"):
        bench.load("wide")
    assert bench.infos() == []
    assert not bench.runtime.live


def test_a_name_in_use_is_only_replaced_on_demand(bench: Bench) -> None:
    bench.load("a")
    with pytest.raises(BadRequest, match=r"has already been loaded\. If you want"):
        bench.load("a", replacing=False)
    assert [info.revision for info in bench.infos()] == [1]


def test_the_old_revision_answers_until_the_new_one_is_there(bench: Bench) -> None:
    bench.load("a")
    old = bench.ask("a")
    bench.look()
    hold = bench.runtime.held_back["a"] = threading.Event()
    loading = bench.adapters.registry.load("a", bench.folder("a"))
    also_old = bench.ask("a")
    assert bench.look() == [also_old]
    hold.set()
    loading.result(60)
    assert [(info.revision, info.state, info.num_requests) for info in bench.infos()] == [
        (1, "retired", 2),
        (2, "ready", 0),
    ]
    new = bench.ask("a")
    assert bench.waiting[new].adapters[0].ref.revision == 2
    bench.end(old)
    bench.end(also_old)
    bench.runtime.wait_for("release a")
    assert bench.look() == [new]
    assert [info.revision for info in bench.infos()] == [2]
    assert len(bench.runtime.live) == 1


def test_a_reload_that_fails_leaves_the_old_one_and_says_so(bench: Bench) -> None:
    bench.load("a")
    bench.runtime.bad.add("a")
    with pytest.raises(BadRequest):
        bench.load("a")
    (info,) = bench.infos()
    assert (info.revision, info.state, info.error) == (1, "ready", "It could not be loaded again: a is bad.")
    assert bench.look() == [] or bench.running
    assert bench.ask("a") in bench.look()


def test_of_two_loads_at_once_the_later_call_wins(bench: Bench) -> None:
    bench.load("a")
    hold = bench.runtime.held_back["a"] = threading.Event()
    first = bench.adapters.registry.load("a", bench.folder("a"))
    bench.runtime.wait_for("load a", 2)
    second = bench.adapters.registry.load("a", bench.root / "a")
    hold.set()
    first.result(60)
    assert second.result(60).state == "ready"
    bench.settle()
    assert [(info.revision, info.state) for info in bench.infos()] == [(3, "ready")]
    assert len(bench.runtime.live) == 1


def test_what_is_unloaded_while_it_is_loading_never_appears(bench: Bench) -> None:
    hold = bench.runtime.held_back["a"] = threading.Event()
    loading = bench.adapters.registry.load("a", bench.folder("a"))
    bench.adapters.registry.unload("a").result(60)
    hold.set()
    with pytest.raises(BadRequest, match="was unloaded while it was being loaded"):
        loading.result(60)
    bench.settle()
    assert bench.infos() == []
    assert not bench.runtime.live


def test_unload_frees_memory_at_once_or_when_the_last_request_ends(bench: Bench) -> None:
    bench.load("a", "b")
    flying = bench.ask("a")
    bench.look()
    bench.adapters.registry.unload("b").result(60)
    assert len(bench.runtime.live) == 1, "when the call returns it is gone"
    bench.adapters.registry.unload("a").result(60)
    assert bench.states() == {"a": "retired"}
    with pytest.raises(NotFound):
        bench.ask("a")
    with pytest.raises(NotFound):
        bench.adapters.registry.unload("a")
    bench.end(flying)
    bench.runtime.wait_for("release a")
    assert bench.infos() == []
    assert not bench.runtime.live


def test_an_earlier_process_s_adapters_are_known_and_read_when_they_are_wanted(bench: Bench) -> None:
    bench.load("a")
    (info,) = bench.infos()
    other = Bench(bench.root)
    try:
        other.adapters.registry.restore(info)
        assert other.infos() == [replace(info, tier="disk")]
        assert other.runtime.asked == []
        other.look_until(other.ask("a"))
        assert other.tiers() == {"a": "device"}
    finally:
        other.adapters.close()
