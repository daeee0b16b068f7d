"""Adapters that requests may use, what is bound in a step, and that no request waits for ever."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from adapter_fixture import Bench, benches_in
from hypothesis import given, settings, strategies as st

from quire.errors import BadRequest, QuireError
from quire.params.sampling import SamplingParams
from quire.types import AdapterRef, NewSeq, Prompt, Request, WeightedAdapter


@pytest.mark.parametrize(
    ("uses", "said"),
    [
        ([("a", 1.0), ("b", 1.0), ("c", 1.0)], "at most 2 adapters together, got 3"),
        ([("a", 1.0), ("a", 0.5)], "names `a` 2 times"),
        ([("a", float("nan"))], "must be from -100 to 100, got nan"),
        ([("a", 101.0)], "must be from -100 to 100, got 101"),
        ([("a", 1.0), ("z", 1.0)], "`z` is not loaded. Adapters loaded: a, b, c"),
    ],
)
def test_a_request_that_cannot_be_is_refused_and_uses_nothing(
    benches: Any, uses: list[tuple[str, float]], said: str
) -> None:
    bench = benches(max_loras=2)
    bench.load("a", "b", "c")
    asked = tuple(WeightedAdapter(AdapterRef(name=name), weight) for name, weight in uses)
    request = Request(id="r", prompt=Prompt(token_ids=(1,)), params=SamplingParams(), adapters=asked)
    with pytest.raises(QuireError, match=said), bench.adapters.acquire(request):
        pass
    assert [info.num_requests for info in bench.infos()] == [0, 0, 0]


def test_what_is_bound_has_slot_and_weight_of_each_chunk(benches: Any) -> None:
    bench = benches(max_loras=3)
    bench.load("a", "b")
    uses = (WeightedAdapter(AdapterRef(name="b"), 0.5), WeightedAdapter(AdapterRef(name="a")))
    request = Request(id="r", prompt=Prompt(token_ids=(1,)), params=SamplingParams(), adapters=uses)
    with bench.adapters.acquire(request) as entered:
        pass
    assert [use.ref.name for use in entered.adapters] == ["a", "b"], "in order of name, for equal page keys"
    assert bench.adapters.try_admit(entered)
    params = SamplingParams()
    start = NewSeq(7, params, 0, (1,), (), adapters=entered.adapters)
    bench.adapters.mapping.start(start)
    assert bench.adapters.mapping.bind_logits([8, 7]) == (((), ((0, 1.0), (1, 0.5))), {})
    bench.adapters.mapping.end(7)
    assert bench.adapters.mapping.bind_logits([8]) == (None, {})


def test_adapters_are_applied_in_order_of_name_whatever_their_slots(benches: Any) -> None:
    bench = benches(max_loras=3)
    bench.load("a", "b")
    for number, names in enumerate((("b",), ("b", "a"))):  # b gets the first slot
        uses = tuple(WeightedAdapter(AdapterRef(name=name)) for name in names)
        request = Request(id=f"r{number}", prompt=Prompt(token_ids=(1,)), params=SamplingParams(), adapters=uses)
        with bench.adapters.acquire(request) as entered:
            pass
        assert bench.adapters.try_admit(entered)
        bench.adapters.mapping.start(NewSeq(number, SamplingParams(), 0, (1,), (), adapters=entered.adapters))
    assert bench.adapters.mapping.bind_logits([0, 1]) == ((((0, 1.0),), ((1, 1.0), (0, 1.0))), {})


NAMES = "abcdef"
SOME = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
MOVES = st.one_of(
    st.tuples(st.just("ask"), SOME),
    st.tuples(st.just("ask"), SOME),
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("settle"), st.none()),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("give up"), st.integers(0, 9)),
    st.tuples(st.just("load"), st.sampled_from(NAMES)),
    st.tuples(st.just("pin"), st.sampled_from(NAMES)),
    st.tuples(st.just("unload"), st.sampled_from(NAMES)),
)


@given(st.integers(1, 3), st.integers(0, 2), st.lists(MOVES, max_size=60))
@settings(max_examples=25, deadline=None)
def test_under_random_loads_and_requests_every_request_runs_and_nothing_is_left(
    tmp_path_factory: pytest.TempPathFactory, slots: int, more: int, moves: list[tuple[str, Any]]
) -> None:
    history(tmp_path_factory.mktemp("moves"), slots, more, moves)


@pytest.mark.parametrize("seed", range(7))
def test_so_it_is_after_a_long_time_too(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    frequent = {"ask": 40, "look": 30, "settle": 10, "end": 13, "give up": 2, "load": 3, "pin": 1, "unload": 1}
    kinds = rng.choices(list(frequent), list(frequent.values()), k=400)
    history(tmp_path, rng.randint(1, 3), rng.randint(0, 2), [(kind, value_for(kind, rng)) for kind in kinds])


def value_for(kind: str, rng: random.Random) -> Any:
    if kind == "ask":
        return rng.sample(NAMES, rng.randint(1, 3))
    return rng.randrange(10) if kind in ("end", "give up") else rng.choice(NAMES)


def history(root: Path, slots: int, more: int, moves: list[tuple[str, Any]]) -> None:
    """Play the moves, then let all come to an end."""
    with benches_in(root) as make:
        bench: Bench = make(max_loras=slots, max_cpu_loras=slots + more)
        bench.load(*NAMES)
        for move, value in moves:
            play(bench, move, value)
            check(bench, slots, slots + more)
        everyone_begins(bench)
        assert not bench.errors
        for name in list(bench.adapters.registry.current):
            bench.adapters.registry.unload(name).result(60)
        bench.settle()
        assert not bench.runtime.live
        assert not bench.runtime.held
        assert bench.infos() == []


def play(bench: Bench, move: str, value: Any) -> None:
    shelf = bench.adapters.registry
    match move:
        case "ask" if len(value) <= bench.config.max_loras and all(name in shelf.current for name in value):
            bench.ask(*value)
        case "look":
            bench.look()
        case "settle":
            bench.settle()
        case "end" if value < len(bench.running):
            bench.end(list(bench.running)[value])
        case "give up" if value < len(bench.waiting):
            bench.end(list(bench.waiting)[value])
        case "load":
            bench.load(value)
        case "pin" if bench.config.max_cpu_loras > bench.config.max_loras:
            with suppress(BadRequest):  # there are as many as may be
                bench.load(value, pinned=True)
        case "unload" if value in shelf.current:
            shelf.unload(value).result(60)


def check(bench: Bench, slots: int, places: int) -> None:
    """What holds at any time."""
    adapters = bench.adapters.registry.known.values()
    holders = [adapter for adapter in adapters if adapter.holding_requests]
    assert len(holders) == len(bench.runtime.held) <= slots
    assert all(adapter.loaded is not None for adapter in holders)
    assert len([adapter for adapter in adapters if adapter.loaded is not None]) <= places


def everyone_begins(bench: Bench) -> None:
    """Who waits now begins soon, although others go on coming; these begin when no more come."""
    old = set(bench.waiting)
    runtimes = {tuple(use.ref for use in request.adapters) for request in bench.waiting.values()}
    for _ in range(4 * len(runtimes) + 4):
        for name in bench.adapters.registry.current:
            bench.ask(name)
        a_round(bench)
    assert not old & set(bench.waiting)
    for _ in range(100):
        if not bench.waiting:
            break
        a_round(bench)
    assert not bench.waiting


def a_round(bench: Bench) -> None:
    bench.look()
    bench.settle()
    for request_id in list(bench.running):
        bench.end(request_id)
