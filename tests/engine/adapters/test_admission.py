"""Which requests begin when there are fewer slots than adapters in use."""

from __future__ import annotations

from typing import Any

from adapter_fixture import Bench

from quire.engine.adapters.admission import REQUESTS_PER_LEASE


def test_requests_with_one_adapter_share_its_slot(bench: Bench) -> None:
    bench.load("a")
    ids = [bench.ask("a") for _ in range(3)]
    assert bench.look() == ids
    assert bench.tiers() == {"a": "device"}
    for request_id in ids:
        bench.end(request_id)
    assert not bench.runtime.held


def test_with_one_slot_and_four_adapters_a_request_waits_at_most_one_turn_of_each(bench: Bench) -> None:
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
    assert len(turns) == 4 * -(-100 // REQUESTS_PER_LEASE)


def test_later_requests_do_not_join_a_running_adapter_while_others_wait_for_the_slot(bench: Bench) -> None:
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
    flood = [bench.ask("a") for _ in range(10 * REQUESTS_PER_LEASE)]
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


def test_a_request_with_several_adapters_gets_all_slots_or_none(benches: Any) -> None:
    bench = benches(max_loras=2)
    bench.load("a", "b")
    bench.runtime.free = {0}  # it has fewer than it said: the second is on its way
    both = bench.ask("a", "b")
    assert bench.look() == []
    assert not bench.runtime.held
    bench.runtime.free = {0, 1}
    assert bench.look() == [both]


def test_a_runtime_that_raises_fails_the_request_and_keeps_no_slot(bench: Bench) -> None:
    bench.load("a")
    bench.runtime.out_of_order = True
    fails = bench.ask("a")
    bench.look()
    assert "'plugin-account' failed: ArithmeticError" in bench.errors[fails].message
    bench.runtime.out_of_order = False
    again = bench.ask("a")
    assert bench.look() == [again]
