"""Drafts with chances are cut where they are no longer worth the time of their rows; the chances are corrected."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from quire.engine.speculation.draft_chances import LEAST, MOST, DraftChances
from quire.engine.speculation.draft_lengths import DraftLengths
from quire.records import Draft
from quire.types import AcceptedDrafts, Chunk, Plan, Sample, StepResult


def cheap(rows: int) -> float:
    return 0.010 + 0.0001 * rows


def steep(rows: int) -> float:
    return 0.005 + 0.005 * rows


class Machine:
    """Steps of sequences whose drafts have such chances, of which `truth` times as many are right."""

    def __init__(self, cost: Callable[[int], float], chances: list[float], truth: float = 1.0) -> None:
        self.lengths, self.cost, self.chances, self.truth = DraftLengths(8, adaptive=True), cost, chances, truth
        self.rng = random.Random(0)

    def run(self, num_seqs: int = 1, num_steps: int = 300) -> tuple[float, float]:
        """Seconds per token, and drafts verified per sequence and step."""
        seconds = tokens = verified = 0.0
        for _ in range(num_steps):
            chunks, accepted = list[Chunk](), dict[int, AcceptedDrafts]()
            for seq_id, length in enumerate(self.lengths.choose(range(num_seqs))):
                draft = Draft()
                if length:
                    draft = self.lengths.cut(seq_id, Draft([1] * length, chances=self.chances[:length]))
                point, right = self.rng.random(), 0
                while right < len(draft.token_ids) and point < self.truth * self.chances[right]:
                    right += 1
                count = len(draft.token_ids)
                chunks.append(Chunk(seq_id, 5, [1] * (1 + count), (), True, num_drafts=count))
                if count:
                    accepted[seq_id] = AcceptedDrafts((Sample(1),) * right, right)
                tokens, verified = tokens + 1 + right, verified + count
            plan = Plan(chunks=tuple(chunks))
            took = self.cost(plan.num_tokens)
            seconds += took
            result = StepResult({seq_id: Sample(1) for seq_id in range(num_seqs)}, accepted=accepted)
            self.lengths.observe(plan, result, 0.0, took)
        return seconds / tokens, verified / num_steps / num_seqs


HALVES = [0.5**i for i in range(1, 9)]


@pytest.mark.parametrize("chances", [[0.95] * 8, HALVES, [0.05] * 8])
@pytest.mark.parametrize("truth", [1.0, 0.0])
@pytest.mark.parametrize("num_seqs", [1, 8])
@pytest.mark.parametrize("cost", [cheap, steep])
def test_drafts_slow_down_by_no_more_than_two_percent(
    cost: Callable[[int], float], num_seqs: int, truth: float, chances: list[float]
) -> None:
    machine = Machine(cost, chances, truth)
    machine.run(num_seqs)  # what is measured before anything is known
    took, _ = machine.run(num_seqs)
    assert took <= 1.02 * cost(num_seqs) / num_seqs


def test_all_are_verified_where_rows_cost_little_and_few_where_they_cost_much() -> None:
    assert Machine(cheap, [0.9] * 8).run()[1] > 7
    assert 0.8 < Machine(steep, [0.9, 0.8, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1]).run()[1] < 2.5


def test_chances_that_are_too_high_are_corrected() -> None:
    machine = Machine(steep, [0.9] * 8, truth=0.3)
    machine.run()
    assert 0.2 < machine.lengths._chances.factor < 0.5
    assert machine.run()[1] < 1
    machine.truth = 1.0
    machine.run(num_steps=3000)
    assert machine.run()[1] > 6, "and corrected again"


def test_the_factor_is_bounded() -> None:
    for right, expected in ((0, LEAST), (8, MOST)):
        found = DraftChances((0.5, 0.1))
        for _ in range(500):
            found.add_result(right, [1.0] * 8 if not right else [0.01] * 8)
        assert found.factor == expected


def test_averages_of_limits_are_those_of_drafts() -> None:
    found = DraftChances((0.5, 0.1))
    assert not found.are_given
    for _ in range(400):
        found.add((0.8, 0.5, 0.2))
        found.add(())
    (high, gain), (low, more) = found.of_limit(0), found.of_limit(1)
    assert (high, low) == (pytest.approx(1, abs=0.02), pytest.approx(1.5, abs=0.03))
    assert (gain, more) == (pytest.approx(0.65, abs=0.02), pytest.approx(0.75, abs=0.02))
    assert [found.length((0.8, 0.5, 0.2), limit) for limit in (0.9, 0.5, 0.1)] == [0, 2, 3]


def test_probabilities_are_cut_with_their_drafts() -> None:
    machine = Machine(steep, [0.9, 0.8, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01])
    machine.run()
    machine.lengths.choose([0])
    draft = machine.lengths.cut(0, Draft([1] * 8, torch.ones(8, 3) / 3, machine.chances))
    assert draft.probs is not None
    assert len(draft.token_ids) == len(draft.probs) == len(draft.chances) < 8


def test_drafts_without_chances_are_cut_by_acceptance() -> None:
    """As those of predictions, beside a drafter that gives chances."""
    machine = Machine(steep, [0.05] * 8, truth=1.0)
    machine.run()
    asked = [machine.lengths.cut(0, Draft([1] * 8)) for length in machine.lengths.choose([0]) if length]
    assert all(len(draft.token_ids) <= 1 for draft in asked)
    fixed = DraftLengths(8, adaptive=False)
    assert fixed.cut(0, Draft([1] * 8, chances=[0.01] * 8)).token_ids == [1] * 8


def test_ended_sequences_are_forgotten() -> None:
    machine = Machine(cheap, [0.9] * 8)
    machine.run(4)
    machine.lengths.choose(range(4))
    for seq_id in range(4):
        machine.lengths.cut(seq_id, Draft([1] * 8, chances=[0.9] * 8))
    machine.lengths.end(range(4))
    assert not machine.lengths._verified
    assert not machine.lengths._seqs
