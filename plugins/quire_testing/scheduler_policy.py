"""Conformance of scheduling policies, on a simulation with a fixed number of running sequences."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, NamedTuple

from quire.records import Context, SchedulerPolicy, SchedulingPolicyImpl
from quire_testing.require import require

MAX_RUNNING = 4
LOAD = 0.95
"""Fraction of the capacity that the arrivals need: bounded, but with a queue most of the time."""

BACKLOG = 20
"""Sequences that wait when a stream begins."""

MAX_OVERTAKEN = 100
"""Later arrivals, no more urgent, that may be admitted before a sequence."""


@dataclass
class FakeSeqView:
    """A sequence as a policy sees it (a `records.SeqView`)."""

    arrival: int
    priority: int
    adapter: str | None
    num_tokens: int
    left: int
    overtaken: int = 0


def check_scheduler_policy(
    record: SchedulerPolicy, *, options: Mapping[str, Any] | None = None, seed: int = 0, num_seqs: int = 600
) -> None:
    """Keys are pure and comparable, a sequence that is admitted first is preempted last, and no sequence starves.

    The load is bounded: sequences of mixed lengths, priorities and adapters arrive at a rate that needs 95 % of the
    capacity. A sequence starves if `MAX_OVERTAKEN` later arrivals that are no more urgent are admitted before it. The
    same must hold for each kind of sequence while an endless stream of any other kind, no more urgent, uses the whole
    capacity. An order by length alone, for example, starves long sequences.
    """
    policy = record.build(Context(options=options or {}))
    seqs = _arrivals(random.Random(seed), num_seqs)
    _check_keys(policy, seqs[:50])
    _simulate(policy, seqs)
    for seq in seqs:
        require(
            seq.overtaken <= MAX_OVERTAKEN,
            f"The sequence of arrival {seq.arrival} (priority {seq.priority}, {seq.num_tokens} tokens) starved: "
            f"{seq.overtaken} later ones that were no more urgent were admitted first.",
        )

    for one, others in permutations(_KINDS, 2):
        if others.priority >= one.priority:
            _check_stream(policy, one, others)


class _Kind(NamedTuple):
    """The attributes of sequences that a policy may use, besides their arrival."""

    priority: int
    adapter: str | None
    num_tokens: int


_KINDS = [_Kind(*values) for values in product((-1, 1), (None, "a"), (5, 50, 200))]


def _check_stream(policy: SchedulingPolicyImpl, one: _Kind, others: _Kind) -> None:
    """One sequence in a stream of others, of which `BACKLOG` arrive before it; one more arrives per admission."""
    waiting = [FakeSeqView(arrival, *others, left=1) for arrival in range(BACKLOG)]
    first = FakeSeqView(BACKLOG, *one, left=1)
    waiting.append(first)
    for arrival in range(BACKLOG + 1, BACKLOG + 1 + 2 * MAX_OVERTAKEN):
        if _admit(policy, waiting) is first:
            return
        waiting.append(FakeSeqView(arrival, *others, left=1))
    require(
        first.overtaken <= MAX_OVERTAKEN,
        f"A sequence of {one.num_tokens} tokens, priority {one.priority} and adapter {one.adapter} starved behind "
        f"sequences of {others.num_tokens} tokens, priority {others.priority} and adapter {others.adapter}.",
    )


def _arrivals(rng: random.Random, count: int) -> list[FakeSeqView]:
    """Mostly short sequences, some twenty times as long; priorities from -1 to 1; two adapters and the base model."""
    seqs = []
    for arrival in range(count):
        tokens = rng.choice((5, 10, 10, 20, 20, 40, 200))
        adapter = rng.choice((None, "a", "a", "b"))
        seqs.append(FakeSeqView(arrival, rng.randint(-1, 1), adapter, tokens, left=tokens))
    return seqs


def _check_keys(policy: SchedulingPolicyImpl, seqs: list[FakeSeqView]) -> None:
    for key in (policy.admit_key, policy.victim_key):
        before = [key(seq) for seq in seqs]
        backwards = [key(seq) for seq in reversed(seqs)][::-1]
        require(before == backwards, f"{key.__name__} gives one sequence different keys.")
        sorted(before)
    first = min(seqs, key=policy.admit_key)
    others = [seq for seq in seqs if seq is not first and policy.victim_key(seq) != policy.victim_key(first)]
    if others:
        require(
            max([first, *others], key=policy.victim_key) is not first,
            "The sequence admitted first would be preempted first: admission and preemption would alternate forever.",
        )


def _simulate(policy: SchedulingPolicyImpl, seqs: list[FakeSeqView]) -> None:
    """Admit and run the sequences as they arrive, until all have arrived."""
    interval = sum(seq.num_tokens for seq in seqs) / len(seqs) / (MAX_RUNNING * LOAD)
    waiting: list[FakeSeqView] = []
    running: list[FakeSeqView] = []
    now, coming = 0, 0
    while coming < len(seqs):
        while coming < len(seqs) and coming * interval <= now:
            waiting.append(seqs[coming])
            coming += 1
        while waiting and len(running) < MAX_RUNNING:
            running.append(_admit(policy, waiting))
        for seq in running:
            seq.left -= 1
        running = [seq for seq in running if seq.left > 0]
        now += 1


def _admit(policy: SchedulingPolicyImpl, waiting: list[FakeSeqView]) -> FakeSeqView:
    chosen = min(waiting, key=policy.admit_key)
    waiting.remove(chosen)
    for seq in waiting:
        seq.overtaken += seq.arrival < chosen.arrival and seq.priority <= chosen.priority
    return chosen
