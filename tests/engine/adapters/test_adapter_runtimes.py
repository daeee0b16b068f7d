"""Adapter runtimes of a plugin's own in the engine: what is computed, and what fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from adapted_rig import PROMPT, PROMPTS, ask, load_all, rig_of, same
from engine_rig import Answer, Rig
from random_adapters import Kit

from quire.errors import BadRequest
from quire.params.sampling import BeamSearchParams, SamplingParams


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 64}, {"batch_invariant": True}])
def test_each_row_of_a_mixed_batch_equals_a_model_with_its_adapter_merged(
    folder: Path,
    kit: Kit,
    adapters: dict[str, Path],
    expected_answers: dict[tuple[str, int], Answer],
    settings: dict[str, Any],
) -> None:
    with rig_of(folder, kit.registry, **settings) as rig:
        load_all(rig, adapters)
        asked = {(name, i): ask(rig, prompt, name) for i, prompt in enumerate(PROMPTS) for name in ("base", *"abs")}
        answers = rig.drain()
    for key, request_id in asked.items():
        assert same(answers[request_id, 0], expected_answers[key]), key
    assert len({tuple(expected_answers[name, 0].token_ids) for name in ("base", *"abcs")}) == 5


def test_rows_of_the_base_model_are_bit_for_bit_those_of_a_server_without_adapters(
    folder: Path, kit: Kit, adapters: dict[str, Path]
) -> None:
    def logprobs(rig: Rig, names: Sequence[str]) -> list[float]:
        ids = [ask(rig, PROMPT, name) for name in names]
        return [one.logprob for one in rig.drain()[ids[0], 0].logprobs]

    settings = {"enable_prefix_caching": False}  # so that both make the same steps
    with rig_of(folder, **settings) as plain, rig_of(folder, kit.registry, **settings) as rig:
        load_all(rig, adapters)
        assert logprobs(rig, ["base", "a", "b"]) == logprobs(plain, ["base"] * 3)


def test_a_lone_runtime_is_bound_directly(
    folder: Path, kit: Kit, adapters: dict[str, Path], expected_answers: dict[tuple[str, int], Answer]
) -> None:
    with rig_of(folder, kit.only("SCALE")) as rig:
        load_all(rig, adapters, "ab")
        ids = {name: ask(rig, PROMPTS[0], name) for name in ("a", "base", "b")}
        answers = rig.drain()
        with pytest.raises(BadRequest, match="type 'SHIFT'; types that can be run: SCALE"):
            rig.engine.load_adapter("s", adapters["s"])
    for name, request_id in ids.items():
        assert same(answers[request_id, 0], expected_answers[name, 0])
    assert kit.built["SCALE"].asked.count("attach") == 1


def test_nothing_is_bound_while_no_request_uses_an_adapter(folder: Path, kit: Kit, adapters: dict[str, Path]) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        ask(rig, PROMPT, None)
        rig.drain()
    assert [asked for runtime in kit.built.values() for asked in runtime.asked if asked == "bind"] == []


def test_preemption_and_forks_keep_the_adapter(
    folder: Path, kit: Kit, adapters: dict[str, Path], merged: dict[str, Path]
) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=14, ignore_eos=True)
    beams = BeamSearchParams(beam_width=2, max_tokens=6, ignore_eos=True)
    small = {"num_pages": 5, "enable_prefix_caching": False}
    with rig_of(folder, kit.registry, **small) as rig, rig_of(merged["a"]) as other:
        load_all(rig, adapters)
        ids = [ask(rig, PROMPT, "a", one) for one in (params, beams)]
        more = [ask(rig, prompt, "b") for prompt in PROMPTS]
        answers = rig.drain()
        stats = rig.engine.stats()
        expected_ids = [ask(other, PROMPT, None, one) for one in (params, beams)]
        expected = other.drain()
    assert stats.num_preemptions_recompute_total > 0
    assert len(more) == sum(answers[request_id, 0].last.finish_reason == "length" for request_id in more)
    for request_id, expected_id, count in zip(ids, expected_ids, (3, 2), strict=True):
        for i in range(count):
            assert answers[request_id, i].token_ids == expected[expected_id, i].token_ids


@pytest.mark.parametrize("where", ["acquire", "bind"])
def test_a_runtime_that_fails_fails_the_requests_that_need_it_only(
    folder: Path, kit: Kit, adapters: dict[str, Path], expected_answers: dict[tuple[str, int], Answer], where: str
) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        kit.built["SCALE"].fails = where
        ids = {name: ask(rig, PROMPTS[0], name) for name in ("base", "a", "s")}
        answers = rig.drain()
        kind, message = answers[ids["a"], 0].last.error or ("", "")
        assert (kind, "'plugin-SCALE' failed: ArithmeticError" in message) == ("PluginFailed", True)
        for name in ("base", "s"):
            assert same(answers[ids[name], 0], expected_answers[name, 0])
        kit.built["SCALE"].fails = ""
        again = ask(rig, PROMPTS[0], "a")
        answer = rig.drain()[again, 0]
        assert same(answer, expected_answers["a", 0])
        assert answer.deltas[0].num_cached_tokens == 0, "what failed is not found in the cache"


def test_a_runtime_that_fails_to_let_go_does_not_end_the_step(
    folder: Path, kit: Kit, adapters: dict[str, Path]
) -> None:
    with rig_of(folder, kit.registry) as rig:
        load_all(rig, adapters)
        kit.built["SCALE"].fails = "release_slot"
        request_id = ask(rig, PROMPT, "a")
        assert rig.drain()[request_id, 0].last.finish_reason == "length"
        assert any(call.split()[0] == "release_slot" for call in kit.built["SCALE"].asked)
