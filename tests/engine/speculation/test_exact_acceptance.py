"""Output is the same with and without drafts, right or wrong, whatever the requests ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_rig import Answer, Rig, greedy, make_rig
from speculation_rig import Outputs, ReplayDrafter, with_drafter
from varied_requests import PROMPTS, SETTINGS, answered, requests, shown

from quire.hooks import registry


@pytest.fixture(scope="module")
def expected(plain: Rig) -> list[dict[int, Answer]]:
    return answered(plain)


def outputs_of(expected: list[dict[int, Answer]]) -> Outputs:
    found: Outputs = {}
    for (prompt, _), every in zip(requests(), expected, strict=True):
        found.setdefault(tuple(prompt), []).extend(answer.token_ids for answer in every.values())
    return found


# some wrong drafts with all settings; only right ones with every other, only wrong ones with the rest
WAYS = (
    [(0.3, each) for each in SETTINGS]
    + [(0.0, each) for each in SETTINGS[::2]]
    + [(1.0, each) for each in SETTINGS[1::2]]
)


@pytest.mark.parametrize(("spoiled", "settings"), WAYS, ids=str)
def test_right_and_wrong_drafts_change_no_answer(
    folder: Path, expected: list[dict[int, Answer]], settings: dict[str, Any], spoiled: float
) -> None:
    drafter = ReplayDrafter(outputs_of(expected), spoiled)
    config = {"speculative_config": {"method": "replay", "num_speculative_tokens": 4, "adaptive": False}}
    rig = make_rig(folder, with_drafter(registry.load(None), drafter), **config, **settings)
    try:
        assert shown(answered(rig)) == shown(expected)
        assert drafter.num_drafted > 100
        rig.engine.step()
        assert not drafter.live
        assert rig.engine.stats().num_pages_used == 0
    finally:
        rig.engine.close()


def test_right_drafts_save_steps(folder: Path, plain: Rig) -> None:
    output = plain.tokens([PROMPTS[0]], greedy(40, ignore_eos=True))[0]
    drafter = ReplayDrafter({tuple(PROMPTS[0]): [output]}, 0.0)
    config = {"speculative_config": {"method": "replay", "num_speculative_tokens": 4, "adaptive": False}}
    rig = make_rig(folder, with_drafter(registry.load(None), drafter), max_num_batched_tokens=64, **config)
    try:
        assert rig.tokens([PROMPTS[0]], greedy(40, ignore_eos=True))[0] == output
        assert rig.engine.stats().num_steps_total == 1 + 8  # the prompt's step gives 1 token, the others 5 (the last 4)
    finally:
        rig.engine.close()


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_found_drafts_change_no_answer(
    folder: Path, expected: list[dict[int, Answer]], method: str, count: int
) -> None:
    rig = make_rig(folder, speculative_config={"method": method, "num_speculative_tokens": count})
    try:
        assert shown(answered(rig)) == shown(expected)
        assert shown(answered(rig)) == shown(expected)  # now the outputs are known
    finally:
        rig.engine.close()
