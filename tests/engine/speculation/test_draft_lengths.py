"""Lengths of drafts follow the acceptance and the cost of rows; times are those of a model of a machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engine_rig import greedy, rig_of
from speculation_rig import ReplayDrafter, with_drafter

from quire.engine.speculation import draft_lengths, speculation
from quire.engine.speculation.draft_lengths import DraftLengths
from quire.hooks import registry
from quire.records import ReadsHidden
from quire.types import AcceptedDrafts, Chunk, HiddenStates, Plan, Sample, StepResult

Cost = Callable[[int], float]


def bound_by_memory(rows: int) -> float:
    return 0.010 + 0.0001 * rows


def bound_by_arithmetic(rows: int) -> float:
    return 0.001 + 0.001 * rows


def run(
    lengths: DraftLengths, cost: Cost, acceptance: float, num_seqs: int = 1, num_steps: int = 400, draft_s: float = 0.0
) -> tuple[float, float]:
    """Seconds per token, and drafts per sequence and step."""
    rng = random.Random(0)
    seconds = tokens = drafted = 0.0
    for _ in range(num_steps):
        chunks, accepted = [], {}
        for seq_id, length in enumerate(lengths.choose(range(num_seqs))):
            right = 0
            while right < length and rng.random() < acceptance:
                right += 1
            chunks.append(Chunk(seq_id, 5, [1] * (1 + length), (), True, num_drafts=length))
            tokens += 1 + right
            drafted += length
            if length:
                accepted[seq_id] = AcceptedDrafts((Sample(1),) * right, right)
        plan = Plan(chunks=tuple(chunks))
        took = cost(plan.num_tokens)
        seconds += took + draft_s * (plan.num_tokens - num_seqs)
        result = StepResult({seq_id: Sample(1) for seq_id in range(num_seqs)}, accepted=accepted)
        lengths.observe(plan, result, draft_s * (plan.num_tokens - num_seqs), took)
    return seconds / tokens, drafted / num_steps / num_seqs


def test_a_fixed_length_is_kept() -> None:
    lengths = DraftLengths(3, adaptive=False)
    assert run(lengths, bound_by_arithmetic, 0.0)[1] == 3


@pytest.mark.parametrize("cost", [bound_by_memory, bound_by_arithmetic])
@pytest.mark.parametrize("num_seqs", [1, 8, 64])
@pytest.mark.parametrize("acceptance", [0.0, 0.2, 0.5, 0.8, 0.95])
def test_drafts_never_slow_down_by_more_than_two_percent(cost: Cost, num_seqs: int, acceptance: float) -> None:
    took, _ = run(DraftLengths(8, adaptive=True), cost, acceptance, num_seqs)
    assert took <= 1.02 * cost(num_seqs) / num_seqs


@pytest.mark.parametrize(("acceptance", "at_least"), [(0.5, 1.7), (0.8, 3.0), (0.95, 5.5)])
def test_right_drafts_are_used_where_rows_cost_little(acceptance: float, at_least: float) -> None:
    took, _ = run(DraftLengths(8, adaptive=True), bound_by_memory, acceptance)
    assert bound_by_memory(1) / took >= at_least


def test_few_drafts_are_made_where_a_row_costs_as_much_as_it_gains() -> None:
    assert run(DraftLengths(8, adaptive=True), bound_by_arithmetic, 0.6, num_seqs=64)[1] < 0.2


def test_a_slow_drafter_is_asked_for_less() -> None:
    quick = run(DraftLengths(8, adaptive=True), bound_by_memory, 0.7)[1]
    slow = run(DraftLengths(8, adaptive=True), bound_by_memory, 0.7, draft_s=0.004)[1]
    too_slow = run(DraftLengths(8, adaptive=True), bound_by_memory, 0.7, draft_s=0.1)[1]
    assert quick > 2 * slow > 0
    assert too_slow < 0.2


def test_drafts_come_back_when_they_become_right() -> None:
    lengths = DraftLengths(8, adaptive=True)
    run(lengths, bound_by_memory, 0.0)
    assert run(lengths, bound_by_memory, 0.95)[1] > 4


def test_drafts_come_back_after_their_steps_were_long_for_another_reason() -> None:
    lengths = DraftLengths(8, adaptive=True)

    def interrupted(rows: int) -> float:
        return bound_by_memory(rows) * (20 if rows > 1 else 1)

    assert run(lengths, interrupted, 0.9, num_steps=100)[1] < 1
    run(lengths, bound_by_memory, 0.9, num_steps=600)
    assert run(lengths, bound_by_memory, 0.9)[1] > 4


@pytest.mark.parametrize("acceptance", [0.0, 0.5])
def test_trying_drafts_again_takes_little_time(acceptance: float) -> None:
    took, _ = run(DraftLengths(8, adaptive=True), bound_by_arithmetic, acceptance, num_steps=6000)
    assert took <= 1.02 * bound_by_arithmetic(1)


def test_ended_sequences_are_forgotten() -> None:
    lengths = DraftLengths(8, adaptive=True)
    run(lengths, bound_by_memory, 0.5, num_seqs=20)
    lengths.end(range(20))
    assert not lengths._seqs


def test_a_drafter_without_drafts_is_asked_less_often() -> None:
    lengths, asked = DraftLengths(8, adaptive=True), 0
    run(lengths, bound_by_memory, 0.9)
    for _ in range(100):
        if lengths.choose([0])[0]:
            asked += 1
            lengths.count_empty([0])
    assert 10 < asked < 30
    run(lengths, bound_by_memory, 0.9, num_steps=40)
    assert sum(bool(lengths.choose([0])[0]) for _ in range(20)) >= 18, "it had drafts since"


def test_the_first_slow_measurement_of_many_rows_is_corrected() -> None:
    """Memory that is allocated and code that is compiled make the first step of some number of rows much slower."""
    first: set[int] = set()

    def cost(rows: int) -> float:
        slow = rows not in first
        first.add(rows)
        return bound_by_memory(rows) * (10 if slow else 1)

    lengths = DraftLengths(8, adaptive=True)
    run(lengths, cost, 0.9)
    assert run(lengths, cost, 0.9)[1] > 6


@pytest.mark.parametrize("cost", [bound_by_memory, bound_by_arithmetic])
@pytest.mark.parametrize("factor", [0.3, 0.6, 1.6, 3.0])
def test_a_machine_that_becomes_faster_or_slower_changes_no_decision(cost: Cost, factor: float) -> None:
    """Also while drafts are wrong, when few steps have some."""
    lengths = DraftLengths(8, adaptive=True)
    run(lengths, cost, 0.9)
    _, before = run(lengths, cost, 0.9)
    run(lengths, lambda rows: factor * cost(rows), 0.02, num_steps=300)
    run(lengths, lambda rows: factor * cost(rows), 0.9, num_steps=300)
    took, after = run(lengths, lambda rows: factor * cost(rows), 0.9)
    assert after > 0.8 * before
    assert took <= 1.02 * factor * cost(1)


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Reader(ReplayDrafter):
    """Takes a second for drafts and three to read hidden states."""

    reads_hidden = ReadsHidden()

    def __init__(self, clock: Clock) -> None:
        super().__init__({}, 0.0)
        self.clock = clock

    def propose(self, queries: Sequence[Any]) -> Any:
        self.clock.now += 1
        return super().propose(queries)

    def observe(self, states: Sequence[HiddenStates]) -> None:
        self.clock.now += 3


def test_reading_hidden_states_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, measured = Clock(), list[float]()
    monkeypatch.setattr(speculation, "perf_counter", clock)
    config = {"method": "replay", "adaptive": False}
    found = with_drafter(registry.load(None), Reader(clock))
    with rig_of(folder, found, speculative_config=config) as rig:
        lengths = rig.engine._speculation._lengths
        monkeypatch.setattr(lengths, "observe", lambda plan, result, draft_s, step_s: measured.append(draft_s))
        rig.tokens([[5, 6, 7]], greedy(4, ignore_eos=True))
    assert measured[:4] == [3, 4, 4, 3]  # nothing is drafted before the first token and before the last


def test_only_decisions_against_drafts_are_followed_by_rests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that have no drafts because their time is measured are followed by drafts."""
    with rig_of(folder) as rig:
        known = rig.tokens([[5, 6, 7]], greedy(100, ignore_eos=True))
    found = with_drafter(registry.load(None), ReplayDrafter({(5, 6, 7): known}, 0.0))
    monkeypatch.setattr(speculation, "perf_counter", Clock())
    monkeypatch.setattr(draft_lengths, "PLAIN_EVERY", 4)
    with rig_of(folder, found, speculative_config={"method": "replay"}) as rig:
        lengths, plain = rig.engine._speculation._lengths, list[bool]()
        observe = lengths.observe

        def at_equal_times(plan: Plan, result: StepResult, draft_s: float, step_s: float) -> None:
            plain.append(plan.num_tokens == 1)
            observe(plan, result, 0.0, 1.0)

        monkeypatch.setattr(lengths, "observe", at_equal_times)
        assert rig.tokens([[5, 6, 7]], greedy(100, ignore_eos=True)) == known
    steady = plain[6:-2]
    assert any(steady)
    assert not any(first and second for first, second in pairwise(steady))
