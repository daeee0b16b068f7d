"""More adapters than seats on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapted_rig import PROMPT, PROMPTS, adapters, ask, folder, kit, load_all, merged, rig_of, same, wanted
from engine_rig import Answer, greedy
from made_up_adapters import Kit

__all__ = ["adapters", "folder", "kit", "merged", "wanted"]


def test_with_fewer_seats_than_adapters_all_finish(
    folder: Path, kit: Kit, adapters: dict[str, Path], wanted: dict[tuple[str, int], Answer]
) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        asked = {(name, i): ask(rig, prompt, name) for i, prompt in enumerate(PROMPTS) for name in ("a", "b", "c")}
        base = ask(rig, PROMPTS[0], "base")
        answers = rig.drain()
    for key, request_id in asked.items():
        assert same(answers[request_id, 0], wanted[key]), key
    assert same(answers[base, 0], wanted["base", 0])
    runtime = kit.built["SCALE"]
    assert not runtime.held
    assert sum(asked.startswith("seat") for asked in runtime.asked) >= 3


def test_others_pass_while_a_request_waits_for_a_seat(folder: Path, kit: Kit, adapters: dict[str, Path]) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        for name in "ab":
            ask(rig, PROMPT, name, greedy(12, ignore_eos=True))
        waits = ask(rig, PROMPT, "c")
        passes = ask(rig, PROMPT, "base", greedy(2))
        order, deferred = [], set()
        while rig.engine.has_work:
            order += [delta.request_id for delta in rig.engine.step() if delta.finish_reason]
            deferred.add(rig.engine.stats().num_deferred)
    assert deferred == {0, 1}
    assert order.index(passes) == 0
    assert order.index(waits) == len(order) - 1


def test_an_adapter_may_be_on_its_way_to_its_seat(
    folder: Path, kit: Kit, adapters: dict[str, Path], wanted: dict[tuple[str, int], Answer]
) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        runtime = kit.built["SCALE"]
        runtime.at = ["x", "y"]
        runtime.held = {id(place) for place in runtime.at}
        request_id = ask(rig, PROMPTS[0], "a")
        assert [rig.engine.step() for _ in range(3)] == [[]] * 3
        runtime.held.clear()
        assert same(rig.drain()[request_id, 0], wanted["a", 0])


def test_who_waits_for_a_seat_is_not_overtaken_for_ever(folder: Path, kit: Kit, adapters: dict[str, Path]) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        waiting = None
        for turn in range(60):  # the seats' adapters are asked for again and again
            for name in "ab":
                ask(rig, PROMPT, name, greedy(5))
            if turn == 1:
                waiting = ask(rig, PROMPT, "c", greedy(2))
            if any(delta.request_id == waiting and delta.finish_reason for delta in rig.engine.step()):
                break
        else:
            pytest.fail("the request for a third adapter was never answered")
        rig.drain()
    assert not kit.built["SCALE"].held


def test_an_aborted_request_gives_its_seat_back(folder: Path, kit: Kit, adapters: dict[str, Path]) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        first = [ask(rig, PROMPT, name, greedy(50)) for name in "ab"]
        rig.engine.step()
        waits = ask(rig, PROMPT, "c", greedy(2))
        rig.engine.step()
        rig.engine.abort(first[0])
        rig.engine.abort(first[1])
        assert rig.drain()[waits, 0].last.finish_reason == "length"
    assert not kit.built["SCALE"].held
