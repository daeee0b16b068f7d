"""Which adapters sit, wait, stay in memory and come back, with a runtime that only keeps account."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from torch import nn

from quire.adapter_info import AdapterInfo
from quire.config import ModelConfig
from quire.engine.adapters import Adapters
from quire.engine.runtimes import Runtimes
from quire.engine.seats import TURN
from quire.errors import BadRequest, ConfigError, NotFound, QuireError
from quire.records import AdapterFacts, AdapterRuntime, AdapterUses, Context, Registry
from quire.sampling import SamplingParams
from quire.types import AdapterRef, AdapterUse, Plan, Prompt, Request, SeqStart


class Account:
    """A runtime without weights: an adapter is its name and number. It checks that it is asked in order."""

    def __init__(self, context: Context) -> None:
        self.free = set(range(context.max_seats))
        self.held: dict[str, int] = {}
        self.asked: list[str] = []
        self.live: set[str] = set()
        self.most_live = self.number = 0
        self.held_back: dict[str, threading.Event] = {}
        self.bad: set[str] = set()
        self.out_of_order = False
        self.changed = threading.Condition()

    def note(self, what: str) -> None:
        with self.changed:
            self.asked.append(what)
            self.changed.notify_all()

    def wait_for(self, what: str, times: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked.count(what) >= times, 60), (what, self.asked)

    def attach(self, model: Any) -> None:
        pass

    def load(self, name: str, path: Path) -> str:
        self.note(f"load {name}")
        if name in self.held_back:
            assert self.held_back[name].wait(60)
        if name in self.bad:
            raise BadRequest(f"{name} is bad.", "lora_path")
        with self.changed:
            self.number += 1
            loaded = f"{name}#{self.number}"
            self.live.add(loaded)
            self.most_live = max(self.most_live, len(self.live))
        return loaded

    def describe(self, adapter: str) -> AdapterFacts:
        return AdapterFacts(num_bytes=100, rank=128 if adapter.startswith("wide") else 8, targets=("q_proj",))

    def seat(self, adapter: str) -> int | None:
        assert adapter in self.live
        assert adapter not in self.held
        if self.out_of_order:
            raise ArithmeticError("out of order")
        if not self.free:
            return None
        self.held[adapter] = min(self.free)
        self.free.remove(self.held[adapter])
        return self.held[adapter]

    def unseat(self, adapter: str) -> None:
        self.free.add(self.held.pop(adapter))

    def release(self, adapter: str) -> None:
        with self.changed:
            assert adapter not in self.held
            self.live.remove(adapter)
        self.note(f"release {adapter.partition('#')[0]}")

    def bind(self, plan: Plan, uses: AdapterUses) -> Any:
        return tuple(uses)

    def bind_rows(self, uses: AdapterUses) -> Any:
        return tuple(uses)


class Bench:
    """Adapters on no model, with requests that begin as soon as they may and end when a test says so."""

    def __init__(self, root: Path, **config: Any) -> None:
        self.root = root
        hook = "quire_adapter_runtimes"
        record = AdapterRuntime("account", frozenset({"ACCOUNT"}), self._build)
        registry = Registry(records={hook: {"account": record}}, origin={(hook, "account"): "plugin-account"})
        self.config = ModelConfig(**{"max_loras": 1, "max_cpu_loras": 4, **config})
        context = Context(max_seats=self.config.max_loras)
        self.adapters = Adapters(Runtimes(registry, lambda _: context, nn.Module()), self.config, "base")
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, Request] = {}
        self.errors: dict[str, QuireError] = {}
        self.begun: list[str] = []
        self._numbers = 0

    def _build(self, context: Context) -> Account:
        self.runtime = Account(context)
        return self.runtime

    def folder(self, name: str, content: str = "") -> Path:
        file, text = self.root / name / "adapter_config.json", json.dumps({"peft_type": "ACCOUNT", "content": content})
        file.parent.mkdir(exist_ok=True)
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
        return file.parent

    def load(self, *names: str, **options: Any) -> None:
        for name in names:
            self.adapters.shelf.load(name, self.folder(name), **options).result(60)

    def ask(self, *names: str) -> str:
        self._numbers += 1
        request = Request(
            id=f"{'+'.join(names)}-{self._numbers}",
            prompt=Prompt(token_ids=(1,)),
            params=SamplingParams(),
            adapters=tuple(AdapterUse(AdapterRef(name=name)) for name in names),
        )
        with self.adapters.entering(request) as entered:
            self.waiting[request.id] = entered
        return request.id

    def look(self) -> list[str]:
        """What a planner does: ask for the waiting in order, pass those who may not begin. Who began."""
        began, closed = [], set()
        for request_id, request in list(self.waiting.items()):
            lane = tuple(use.ref for use in request.adapters)
            if lane in closed:
                continue
            try:
                ready = self.adapters.ready(request)
            except QuireError as error:
                self.errors[request_id] = error
                del self.waiting[request_id]
                self.adapters.leave(request_id)
                continue
            if ready:
                self.running[request_id] = self.waiting.pop(request_id)
                began.append(request_id)
            elif ready is None:
                closed.add(lane)
        self.begun += began
        return began

    def look_until(self, request_id: str) -> None:
        """Look while adapters are read in the background, until a request has begun or failed."""
        for _ in range(1000):
            self.look()
            if request_id in self.running or request_id in self.errors:
                return
            self.settle()
        raise AssertionError(f"{request_id} never began")

    def settle(self) -> None:
        """Wait until nothing is being read or let go of any more."""
        reader = self.adapters._reader
        marks = threading.Barrier(3)
        for _ in range(2):  # both threads have to come here, so all before is done
            reader._threads.submit(marks.wait, 60)
        marks.wait(60)

    def end(self, request_id: str) -> None:
        self.running.pop(request_id, None) or self.waiting.pop(request_id)
        self.adapters.leave(request_id)

    def tiers(self) -> dict[str, str | None]:
        return {info.name: info.tier for info in self.infos()}

    def states(self) -> dict[str, str]:
        return {info.name: info.state for info in self.infos()}

    def infos(self) -> list[AdapterInfo]:
        return self.adapters.shelf.infos()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.adapters.close()


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Any]:
    made: list[Bench] = []

    def make(**config: Any) -> Bench:
        made.append(Bench(tmp_path, **config))
        return made[-1]

    yield make
    for one in made:
        one.adapters.close()


# --- turns -------------------------------------------------------------------------------------------


def test_requests_with_one_adapter_share_its_seat(bench: Bench) -> None:
    bench.load("a")
    ids = [bench.ask("a") for _ in range(3)]
    assert bench.look() == ids
    assert bench.tiers() == {"a": "seat"}
    for request_id in ids:
        bench.end(request_id)
    assert not bench.runtime.held


def test_with_one_seat_and_four_adapters_nobody_waits_for_more_than_a_turn_of_each(bench: Bench) -> None:
    names = "abcd"
    bench.load(*names)
    asked = {bench.ask(name): 0 for _ in range(100) for name in names}
    rounds = 0
    while bench.waiting or bench.running:
        rounds += 1
        bench.look()
        running = {request_id[0] for request_id in bench.running}
        assert len(running) == 1
        for request_id in list(bench.running)[:8]:
            bench.end(request_id)
    assert set(bench.begun) == set(asked)
    turns = [name for i, name in enumerate(r[0] for r in bench.begun) if i == 0 or bench.begun[i - 1][0] != name]
    assert turns == [names[i % 4] for i in range(len(turns))]
    assert len(turns) == 4 * -(-100 // TURN)


def test_who_comes_later_does_not_join_while_others_wait_for_the_seat(bench: Bench) -> None:
    bench.load("a", "b")
    first = bench.ask("a")
    bench.look()
    with_b = bench.ask("b")
    before = bench.ask("a")
    assert bench.look() == [before]
    late = bench.ask("a")
    assert bench.look() == []
    bench.end(first)
    assert bench.look() == []
    bench.end(before)
    assert bench.look() == [with_b]
    bench.end(with_b)
    assert bench.look() == [late]


def test_a_flood_on_one_adapter_does_not_lock_out_another(bench: Bench) -> None:
    bench.load("a", "b")
    flood = [bench.ask("a") for _ in range(10 * TURN)]
    assert len(bench.look()) == len(flood), "alone it may have all it wants"
    for _ in range(5):
        bench.ask("a")
    quiet = bench.ask("b")
    bench.look()
    for i, request_id in enumerate(flood):
        bench.end(request_id)
        bench.ask("a")
        began = bench.look()
        assert i + 1 < len(flood) or not began
    for request_id in list(bench.running):
        bench.end(request_id)
    assert quiet in bench.look()


def test_who_waits_and_gives_up_no_longer_keeps_others_from_joining(bench: Bench) -> None:
    bench.load("a", "b")
    bench.ask("a")
    bench.look()
    gives_up = bench.ask("b")
    bench.look()
    late = bench.ask("a")
    assert bench.look() == []
    bench.end(gives_up)
    assert bench.look() == [late]


def test_only_as_many_turns_are_closed_as_others_need(benches: Any) -> None:
    bench = benches(max_loras=2)
    bench.load("a", "b", "c")
    ids = {name: bench.ask(name) for name in "ab"}
    bench.look()
    waits = bench.ask("c")
    bench.look()
    more = {name: bench.ask(name) for name in "ab"}
    assert bench.look() == [more["b"]], "a has sat longest"
    bench.end(ids["a"])
    assert bench.look() == [waits]


def test_several_adapters_sit_together_or_not_at_all(benches: Any) -> None:
    bench = benches(max_loras=2)
    bench.load("a", "b", "c")
    alone = bench.ask("a")
    bench.look()
    both, other = bench.ask("b", "c"), bench.ask("b")
    assert bench.look() == []
    assert set(bench.runtime.held) == {"a#1"}
    bench.end(alone)
    assert bench.look() == [both, other]
    assert len(bench.runtime.held) == 2


def test_a_runtime_without_a_seat_gives_none_of_several(benches: Any) -> None:
    bench = benches(max_loras=2)
    bench.load("a", "b")
    bench.runtime.free = {0}  # it has fewer than it said: the second is on its way
    both = bench.ask("a", "b")
    assert bench.look() == []
    assert not bench.runtime.held
    bench.runtime.free = {0, 1}
    assert bench.look() == [both]


def test_a_runtime_that_raises_fails_the_request_and_keeps_no_seat(bench: Bench) -> None:
    bench.load("a")
    bench.runtime.out_of_order = True
    fails = bench.ask("a")
    bench.look()
    assert "'plugin-account' failed: ArithmeticError" in bench.errors[fails].message
    bench.runtime.out_of_order = False
    again = bench.ask("a")
    assert bench.look() == [again]


# --- memory ------------------------------------------------------------------------------------------


def test_the_least_recently_used_leaves_memory_and_comes_back_when_it_is_wanted(benches: Any) -> None:
    bench = benches(max_cpu_loras=2)
    bench.load("a", "b")
    bench.end(bench.look_until(used := bench.ask("a")) or used)
    bench.load("c")
    assert bench.tiers() == {"a": "seat", "b": "disk", "c": "host"}
    bench.runtime.wait_for("release b")
    back = bench.ask("b")
    assert bench.look() == [], "it is read beside the steps"
    bench.look_until(back)
    assert bench.tiers() == {"a": "disk", "b": "seat", "c": "host"}
    assert bench.adapters.stats().num_reads_total == 1
    assert bench.adapters.stats().num_evictions_total == 2


def test_who_waits_for_the_disk_keeps_nobody_else_waiting(benches: Any) -> None:
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
    bench.adapters.shelf.unload("a").result(60)
    bench.load("d", pinned=True)


def test_memory_full_of_waiting_and_running_adapters_lets_everyone_through(benches: Any) -> None:
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


# --- loading -----------------------------------------------------------------------------------------


def test_requests_wait_for_an_adapter_that_is_loading_and_others_pass(bench: Bench) -> None:
    bench.load("b")
    hold = bench.runtime.held_back["a"] = threading.Event()
    loading = bench.adapters.shelf.load("a", bench.folder("a"))
    waits, passes = bench.ask("a"), bench.ask("b")
    assert bench.look() == [passes]
    assert bench.states() == {"b": "ready", "a": "loading"}
    assert bench.tiers()["a"] is None
    bench.end(passes)
    hold.set()
    assert loading.result(60).state == "ready"
    assert bench.look() == [waits]


def test_a_load_that_fails_leaves_all_as_it_was_and_fails_who_waited(bench: Bench) -> None:
    hold = bench.runtime.held_back["a"] = threading.Event()
    bench.runtime.bad.add("a")
    loading = bench.adapters.shelf.load("a", bench.folder("a"))
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


def test_a_failure_nobody_waited_for_is_shown_until_it_is_loaded_or_unloaded(bench: Bench) -> None:
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
    bench.adapters.shelf.unload("a").result(60)
    assert bench.infos() == []


def test_failures_that_are_shown_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.engine.adapter_shelf.MOST_FAILED", 2)
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
    loading = bench.adapters.shelf.load("a", bench.folder("a"))
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
    first = bench.adapters.shelf.load("a", bench.folder("a"))
    bench.runtime.wait_for("load a", 2)
    second = bench.adapters.shelf.load("a", bench.root / "a")
    hold.set()
    first.result(60)
    assert second.result(60).state == "ready"
    bench.settle()
    assert [(info.revision, info.state) for info in bench.infos()] == [(3, "ready")]
    assert len(bench.runtime.live) == 1


def test_what_is_unloaded_while_it_is_loading_never_appears(bench: Bench) -> None:
    hold = bench.runtime.held_back["a"] = threading.Event()
    loading = bench.adapters.shelf.load("a", bench.folder("a"))
    bench.adapters.shelf.unload("a").result(60)
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
    bench.adapters.shelf.unload("b").result(60)
    assert len(bench.runtime.live) == 1, "when the call returns it is gone"
    bench.adapters.shelf.unload("a").result(60)
    assert bench.states() == {"a": "retired"}
    with pytest.raises(NotFound):
        bench.ask("a")
    with pytest.raises(NotFound):
        bench.adapters.shelf.unload("a")
    bench.end(flying)
    bench.runtime.wait_for("release a")
    assert bench.infos() == []
    assert not bench.runtime.live


def test_an_earlier_process_s_adapters_are_known_and_read_when_they_are_wanted(bench: Bench) -> None:
    bench.load("a")
    (info,) = bench.infos()
    other = Bench(bench.root)
    try:
        other.adapters.shelf.restore(info)
        assert other.infos() == [replace(info, tier="disk")]
        assert other.runtime.asked == []
        other.look_until(other.ask("a"))
        assert other.tiers() == {"a": "seat"}
    finally:
        other.adapters.close()


# --- what a request may ask for ----------------------------------------------------------------------


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
    asked = tuple(AdapterUse(AdapterRef(name=name), weight) for name, weight in uses)
    request = Request(id="r", prompt=Prompt(token_ids=(1,)), params=SamplingParams(), adapters=asked)
    with pytest.raises(QuireError, match=said), bench.adapters.entering(request):
        pass
    assert [info.num_requests for info in bench.infos()] == [0, 0, 0]


def test_what_is_bound_says_seat_and_weight_of_each_chunk(benches: Any) -> None:
    bench = benches(max_loras=3)
    bench.load("a", "b")
    uses = (AdapterUse(AdapterRef(name="b"), 0.5), AdapterUse(AdapterRef(name="a")))
    request = Request(id="r", prompt=Prompt(token_ids=(1,)), params=SamplingParams(), adapters=uses)
    with bench.adapters.entering(request) as entered:
        pass
    assert [use.ref.name for use in entered.adapters] == ["a", "b"], "in order of name, for equal page keys"
    assert bench.adapters.ready(entered)
    params = SamplingParams()
    start = SeqStart(7, params, 0, (1,), (), adapters=entered.adapters)
    bench.adapters.follow(Plan(started=(start, SeqStart(8, params, 0, (1,), ()))))
    assert bench.adapters.bind_rows([8, 7]) == (((), ((0, 1.0), (1, 0.5))), {})
    bench.adapters.follow(Plan(ended=(7,)))
    assert bench.adapters.bind_rows([8]) == (None, {})


def test_more_seats_than_places_in_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="--max-cpu-loras must be at least --max-loras"):
        ModelConfig(max_loras=4, max_cpu_loras=3)


# --- whatever happens --------------------------------------------------------------------------------

NAMES = "abcde"
MOVES = st.one_of(
    st.tuples(st.just("ask"), st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)),
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("load"), st.sampled_from(NAMES)),
    st.tuples(st.just("unload"), st.sampled_from(NAMES)),
)


@given(st.integers(2, 3), st.integers(0, 2), st.lists(MOVES, max_size=40))
@settings(max_examples=200, deadline=None)
def test_whatever_is_asked_loaded_and_unloaded_everyone_gets_a_turn_and_nothing_is_left(
    tmp_path_factory: pytest.TempPathFactory, seats: int, more: int, moves: list[tuple[str, Any]]
) -> None:
    bench = Bench(tmp_path_factory.mktemp("moves"), max_loras=seats, max_cpu_loras=seats + more)
    try:
        for move, value in moves:
            play(bench, move, value)
            assert len(bench.runtime.held) <= seats
            holders = Counter(a.ref for a in bench.adapters.shelf.known.values() if a.holders)
            assert len(holders) == len(bench.runtime.held)
        for _ in range(300):
            bench.look()
            bench.settle()
            for request_id in list(bench.running):
                bench.end(request_id)
            if not bench.waiting:
                break
        assert not bench.waiting
        assert not bench.errors
        for name in list(bench.adapters.shelf.current):
            bench.adapters.shelf.unload(name).result(60)
        bench.settle()
        assert not bench.runtime.live
        assert not bench.runtime.held
        assert bench.infos() == []
    finally:
        bench.adapters.close()


def play(bench: Bench, move: str, value: Any) -> None:
    current = bench.adapters.shelf.current
    if move == "ask" and all(name in current for name in value):
        bench.ask(*value)
    elif move == "look":
        bench.look()
    elif move == "end" and value < len(bench.running):
        bench.end(list(bench.running)[value])
    elif move == "load":
        bench.load(value)
    elif move == "unload" and value in current:
        bench.adapters.shelf.unload(value).result(60)
