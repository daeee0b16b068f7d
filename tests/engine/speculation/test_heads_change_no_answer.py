"""Output is the same with and without draft heads, whose drafts are right or wrong, whatever the requests ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Answer, make_rig
from head_rig import drafted_rig
from random_heads import random_eagle, random_eagle3, random_medusa
from varied_requests import PROMPTS, SETTINGS, answered, shown

from quire.params.sampling import SamplingParams
from quire_testing.tiny import tiny_llama

HEADS: dict[str, Callable[[Path], Path]] = {"medusa": random_medusa, "eagle": random_eagle, "eagle3": random_eagle3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"), seed=3, num_hidden_layers=4)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[dict[int, Answer]]:
    rig = make_rig(folder)
    try:
        return answered(rig)
    finally:
        rig.engine.close()


# `test_drawn_requests` has each head in small pools too; EAGLE-3 does all that EAGLE does, Medusa keeps no pages
WAYS = [
    *(("eagle3", settings) for settings in SETTINGS),
    *(("eagle", settings) for settings in SETTINGS[::2]),
    *(("medusa", settings) for settings in SETTINGS[1::2]),
]


@pytest.mark.parametrize(("name", "settings"), WAYS, ids=str)
def test_heads_change_no_answer(
    tmp_path: Path, folder: Path, expected: list[dict[int, Answer]], name: str, settings: dict[str, Any]
) -> None:
    head = HEADS[name](tmp_path / "head")
    with drafted_rig(folder, name, head, **settings) as (rig, proposals):
        assert shown(answered(rig)) == shown(expected)
        assert proposals.num_drafted > 100
        rig.engine.step()
        assert proposals.built.num_seqs == 0
        assert rig.engine.stats().num_pages_used == 0


@pytest.mark.parametrize("name", HEADS)
def test_aborted_requests_leave_no_state(tmp_path: Path, folder: Path, name: str) -> None:
    head, settings = HEADS[name](tmp_path / "head"), {"max_num_batched_tokens": 128, "max_num_seqs": 6}
    with drafted_rig(folder, name, head, **settings) as (rig, proposals):
        for i in range(18):
            rig.add(PROMPTS[i % len(PROMPTS)], SamplingParams(max_tokens=50, seed=i, ignore_eos=True))
        for step in range(36):
            rig.engine.step()
            if step % 2:
                rig.engine.abort(f"r{1 + step // 2}")
        assert proposals.num_drafted > 0
        rig.drain()
        rig.engine.step()
        assert proposals.built.num_seqs == 0
        assert rig.engine.stats().num_pages_used == 0
        if name != "medusa":
            assert proposals.built.pages.num_free == proposals.built.num_pages


def test_sequences_that_find_no_pages_are_drafted_for_later(
    tmp_path: Path, folder: Path, expected: list[dict[int, Answer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire_drafters.heads.feature_drafter.MAX_PAIRS", 8)
    head = random_eagle(tmp_path / "head")
    sizes = {"page_size": 4, "max_num_batched_tokens": 64, "max_model_len": 64}
    with drafted_rig(folder, "eagle", head, **sizes) as (rig, proposals):
        assert proposals.built.num_pages == 17  # those of one sequence
        assert shown(answered(rig)) == shown(expected)
        rig.engine.step()
        assert any(len(draft) < query.max_drafts for query, _, draft in proposals.every)
        assert proposals.num_drafted > 100
        assert proposals.built.pages.num_free == 17
