"""Drafts of constrained sequences: as far as the grammar allows, then what it forces; matchers stay as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from quire.engine.sampling.sampler import SamplingState
from quire.engine.speculation.grammar_drafts import follow_grammars
from quire.engine.structured.constraint_tracker import Constraint, ConstraintTracker
from quire.params.sampling import SamplingParams
from quire.records import Draft, Registry

EOS, VOCAB = 9, 12
TEXT = [1, 2, 3, 4, 5]


class Recital:
    """A grammar of one text whose tokens may all be left out but the last two, which are forced."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.starts = fault, 0

    def start(self) -> Place:
        self.starts += 1
        if self.fault == "start" and self.starts > 1:
            raise RuntimeError("no more")
        return Place(self)


class Place:
    """How far a sequence is."""

    def __init__(self, of: Recital) -> None:
        self.of, self.passed = of, [0]

    @property
    def is_terminated(self) -> bool:
        return self.passed[-1] == len(TEXT)

    @property
    def is_accepting(self) -> bool:
        return self.is_terminated

    def fill(self, mask: torch.Tensor) -> None:
        mask.zero_()
        for token in TEXT[self.passed[-1] : max(3, self.passed[-1]) + 1]:
            mask[0] |= 1 << token

    def accept(self, token_id: int) -> bool:
        at = self.passed[-1]
        if token_id not in TEXT[at : max(3, at) + 1]:
            if self.of.fault == "accept" or self.of.fault == "start":
                self.passed.append(99)
                raise RuntimeError("forbidden")
            return False
        self.passed.append(TEXT.index(token_id) + 1)
        return True

    def rollback(self, count: int) -> None:
        if self.of.fault == "rollback":
            raise RuntimeError("no way back")
        del self.passed[len(self.passed) - count :]

    def jump_forward(self) -> Sequence[int]:
        return TEXT[self.passed[-1] :] if self.passed[-1] >= 3 else ()


@pytest.fixture
def tracker() -> ConstraintTracker:
    return ConstraintTracker(Registry(records={}), VOCAB, (EOS,))


def state_of(tracker: ConstraintTracker, output: Sequence[int] = (), fault: str = "") -> SamplingState:
    ids = list(output)
    constraint = tracker.start("p", Recital(fault), ids)
    return SamplingState(SamplingParams(), 0, ids, constraint=constraint)


def constraint_of(state: SamplingState) -> Constraint:
    assert state.constraint is not None
    return state.constraint


def followed(tracker: ConstraintTracker, state: SamplingState, draft: Draft) -> list[int] | None:
    found = follow_grammars(tracker, {7: state}, {7: draft, 8: Draft([3, 3, 3])})
    assert list(found[8].token_ids) == [3, 3, 3], "another sequence has no grammar"
    return list(found[7].token_ids) if 7 in found else None


@pytest.mark.parametrize(
    ("output", "drafts", "expected"),
    [
        ([], [1, 2], [1, 2]),
        ([], [2, 1, 3], [2]),
        ([], [7], []),
        ([], [1, 3], [1, 3, 4, 5]),
        ([], [3, 4, 5], [3, 4, 5]),
        ([], [3, 5], [3, 4, 5]),
        ([1, 2], [3, 4, EOS], [3, 4, 5]),
        ([1, 2], [3, 4, 5, EOS, 1], [3, 4, 5, EOS]),
        ([4], [1], [5]),
        ([3, 4, 5], [EOS, EOS], [EOS]),
        ([3, 4, 5, EOS], [1], []),
    ],
)
def test_drafts_end_where_the_grammar_forbids_them_and_go_on_with_what_it_forces(
    tracker: ConstraintTracker, output: list[int], drafts: list[int], expected: list[int]
) -> None:
    state = state_of(tracker, output)
    before: Any = list(constraint_of(state).matcher.passed), constraint_of(state).num_accepted, state.output_ids[:]
    assert followed(tracker, state, Draft(drafts)) == expected
    assert before == (constraint_of(state).matcher.passed, constraint_of(state).num_accepted, state.output_ids)


def test_a_drawn_token_that_is_forbidden_stays_to_be_rejected(tracker: ConstraintTracker) -> None:
    probs = torch.full((4, VOCAB), 1 / VOCAB)
    found = follow_grammars(tracker, {7: state_of(tracker)}, {7: Draft([1, 7, 2, 3], probs)})[7]
    assert found.probs is not None
    assert (list(found.token_ids), len(found.probs)) == ([1, 7], 2)
    forced = follow_grammars(tracker, {7: state_of(tracker)}, {7: Draft([1, 3], probs[:2])})[7]
    assert forced.probs is not None
    assert (list(forced.token_ids), len(forced.probs)) == ([1, 3, 4, 5], 2)


@pytest.mark.parametrize(("fault", "drafts"), [("accept", [3, 7]), ("rollback", [3, 4])])
def test_a_matcher_that_raises_begins_again(tracker: ConstraintTracker, fault: str, drafts: list[int]) -> None:
    state = state_of(tracker, [1, 2], fault)
    assert followed(tracker, state, Draft(drafts)) is None
    matcher: Any = constraint_of(state).matcher
    assert (matcher.passed, constraint_of(state).num_accepted, state.error) == ([0, 1, 2], 2, None)
    assert matcher.of.starts == 2
    assert tracker.advance(constraint_of(state), 3, jumps=True) == ([4, 5], True)


def test_a_matcher_that_cannot_begin_again_ends_its_sequence(tracker: ConstraintTracker) -> None:
    state = state_of(tracker, [1], "start")
    assert followed(tracker, state, Draft([7])) is None
    assert state.error is not None
    assert "no more" in state.error[1]
    assert followed(tracker, state, Draft([2])) == [2], "it is left alone from then on"


def test_drafts_cost_no_answer(tracker: ConstraintTracker) -> None:
    state = state_of(tracker)
    cost = constraint_of(state).cost
    cost.draft_seconds = 1e6
    assert followed(tracker, state, Draft([1])) == []
    masks = tracker.start_fill([(0, constraint_of(state))])
    assert masks is not None
    assert masks.filling.result() == {}, "only the time of its masks counts against a grammar"
    cost.draft_seconds = 0.0
    assert followed(tracker, state, Draft([1])) == [1]
    assert 0 < cost.draft_seconds < 1
    assert cost.tokens == 0
    tracker.close()
