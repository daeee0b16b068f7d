"""A drafter that fails costs drafts, is blamed for it, and changes no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig, greedy, make_rig, related_prompts
from speculation_rig import with_drafter

from quire.errors import BadRequest
from quire.hooks import registry
from quire.hooks.call_stats import PluginCallStats
from quire.records import Draft, DraftQuery

PROMPTS = related_prompts(4, seed=5)
CONFIG = {"speculative_config": {"method": "replay", "num_speculative_tokens": 3, "adaptive": False}}


class Broken:
    """Proposes what `drafts` makes of the queries; `end` calls `at_end`."""

    def __init__(self, drafts: Callable[[Sequence[DraftQuery]], Any], at_end: Callable[[], object] = list) -> None:
        self.drafts, self.at_end = drafts, at_end
        self.num_calls = self.num_ends = 0

    def propose(self, queries: Sequence[DraftQuery]) -> Any:
        self.num_calls += 1
        return self.drafts(queries)

    def end(self, seq_ids: Sequence[int]) -> None:
        self.num_ends += 1
        self.at_end()


def each(token_ids: Any, chances: Any = ()) -> Callable[[Sequence[DraftQuery]], list[Draft]]:
    return lambda queries: [
        Draft(token_ids[: query.max_drafts] if chances else token_ids, None, chances) for query in queries
    ]


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    rig = make_rig(folder)
    answers = rig.tokens(PROMPTS, greedy(8, ignore_eos=True))
    rig.engine.close()
    return answers


@pytest.fixture
def rig_with(folder: Path) -> Iterator[Callable[[Broken], tuple[Rig, PluginCallStats]]]:
    made: list[Rig] = []

    def make(drafter: Broken) -> tuple[Rig, PluginCallStats]:
        counter = PluginCallStats(max_faults=3)
        found = replace(with_drafter(registry.load(None), drafter), counter=counter)
        made.append(make_rig(folder, found, **CONFIG))
        return made[-1], counter

    yield make
    for rig in made:
        rig.engine.close()


def faults(counter: PluginCallStats) -> int:
    return next((row["errors"] for row in counter.snapshot() if row["plugin"] == "tests"), 0)


def _refuse(queries: Sequence[DraftQuery]) -> list[Draft]:
    raise BadRequest("I do not draft.")


@pytest.mark.parametrize(
    "drafts",
    [
        lambda queries: 1 // 0,
        _refuse,
        lambda queries: None,
        lambda queries: [],
        lambda queries: [Draft()] * (len(queries) + 1),
        lambda queries: [None] * len(queries),
        lambda queries: [[1, 2]] * len(queries),
        each([100_000]),
        each([-1]),
        each([2**70]),
        each([1, 2, 3, 4]),
        each([1], [0.5, 0.4]),
        each([1], [float("nan")]),
        each([1, 2], [0.4, 0.5]),
        each([1], [1.5]),
        each([1], ["a"]),
        each([1.5]),
        each(["a"]),
        each([None]),
        each(7),
    ],
    ids=[
        *(
            "raises",
            "refuses",
            "none",
            "too few",
            "too many drafts",
            "no drafts",
            "lists",
            "above",
            "below",
            "huge",
            "too long",
            "too many chances",
            "no number as chance",
            "ascending chances",
            "chance above one",
            "chance as text",
        ),
        *("fractions", "texts", "nones", "no sequence"),
    ],
)
def test_a_fault_is_counted_and_answers_go_on_without_drafts(
    rig_with: Any, expected: list[list[int]], drafts: Callable[[Sequence[DraftQuery]], Any]
) -> None:
    drafter = Broken(drafts)
    rig, counter = rig_with(drafter)
    assert rig.tokens(PROMPTS, greedy(8, ignore_eos=True)) == expected
    assert faults(counter) == drafter.num_calls == 3, "after three faults in a row it is switched off"
    rig.engine.step()
    assert drafter.num_ends > 0
    assert rig.engine.stats().num_pages_used == 0
    assert rig.engine.failed_steps == 0


def test_a_drafter_that_fails_once_drafts_again(rig_with: Any, expected: list[list[int]]) -> None:
    calls = iter(range(1000))
    drafter = Broken(lambda queries: 1 // 0 if next(calls) == 1 else [Draft([1])] * len(queries))
    rig, counter = rig_with(drafter)
    assert rig.tokens(PROMPTS, greedy(8, ignore_eos=True)) == expected
    assert faults(counter) == 1
    assert drafter.num_calls > 4


def test_a_drafter_whose_end_fails_is_blamed(rig_with: Any, expected: list[list[int]]) -> None:
    rig, counter = rig_with(Broken(each([1]), at_end=lambda: 1 // 0))
    assert rig.tokens(PROMPTS, greedy(8, ignore_eos=True)) == expected
    rig.engine.step()
    assert faults(counter) >= 1


def test_a_draft_of_numpy_integers_is_accepted(rig_with: Any, expected: list[list[int]]) -> None:
    import numpy as np

    rig, counter = rig_with(Broken(lambda queries: [Draft(np.array([1, 2])[: query.max_drafts]) for query in queries]))
    assert rig.tokens(PROMPTS, greedy(8, ignore_eos=True)) == expected
    assert faults(counter) == 0
    counts = rig.engine.stats().speculation
    assert counts is not None
    assert counts.num_draft_tokens_total > 0
