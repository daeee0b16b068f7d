"""More adapters than slots on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapted_rig import PROMPT, PROMPTS, ask, load_all, rig_of, same
from engine_rig import Answer, greedy
from random_adapters import Kit


def test_with_fewer_slots_than_adapters_all_requests_finish(
    folder: Path, kit: Kit, adapters: dict[str, Path], expected_answers: dict[tuple[str, int], Answer]
) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        asked = {(name, i): ask(rig, prompt, name) for i, prompt in enumerate(PROMPTS) for name in ("a", "b", "c")}
        base = ask(rig, PROMPTS[0], "base")
        answers = rig.drain()
    for key, request_id in asked.items():
        assert same(answers[request_id, 0], expected_answers[key]), key
    assert same(answers[base, 0], expected_answers["base", 0])
    runtime = kit.built["SCALE"]
    assert not runtime.held
    assert sum(asked.startswith("acquire") for asked in runtime.asked) >= 3


def test_other_requests_run_while_one_waits_for_a_slot(folder: Path, kit: Kit, adapters: dict[str, Path]) -> None:
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


def test_a_request_waits_while_its_adapter_is_copied_to_its_slot(
    folder: Path, kit: Kit, adapters: dict[str, Path], expected_answers: dict[tuple[str, int], Answer]
) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        runtime = kit.built["SCALE"]
        runtime.at = ["x", "y"]
        runtime.held = {id(place) for place in runtime.at}
        request_id = ask(rig, PROMPTS[0], "a")
        assert [rig.engine.step() for _ in range(3)] == [[]] * 3
        runtime.held.clear()
        assert same(rig.drain()[request_id, 0], expected_answers["a", 0])


def test_a_request_that_waits_for_a_slot_is_not_overtaken_for_ever(
    folder: Path, kit: Kit, adapters: dict[str, Path]
) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        waiting = None
        for turn in range(60):  # requests for the adapters in the slots keep coming
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


def test_an_aborted_request_releases_its_slot(folder: Path, kit: Kit, adapters: dict[str, Path]) -> None:
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
