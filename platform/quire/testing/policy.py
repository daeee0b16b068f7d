"""Conformance of scheduling policies, on a simulated queue: a number of seats, and seqs that take their time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any, NamedTuple

from quire.records import Context, OrdersSeqs, SchedulerPolicy
from quire.testing.demand import demand

SEATS = 4
LOAD = 0.95
"""Share of the seats that the arrivals keep busy: bounded, but with a queue most of the time."""

BACKLOG = 20
"""Seqs that wait when a stream begins."""

PATIENCE = 100
"""Later arrivals, no more urgent, that may be admitted before a seq does."""


@dataclass
class View:
    """A seq as a policy sees it (a `records.SeqView`)."""

    arrival: int
    priority: int
    adapter: str | None
    num_tokens: int
    left: int
    overtaken: int = 0


def check_policy(
    record: SchedulerPolicy, *, options: Mapping[str, Any] | None = None, seed: int = 0, num_seqs: int = 600
) -> None:
    """Keys are pure and comparable, whoever is admitted first is evicted last, and nobody starves.

    The load is bounded: seqs of mixed lengths, priorities and adapters arrive at a rate that keeps 95 % of
    the seats busy. To starve is to see `PATIENCE` later arrivals admitted first that were no more urgent. The same must
    hold for each kind of seq while an endless stream of any other kind, no more urgent, keeps all seats busy: an order
    by length, say, must let what is long through in the end.
    """
    policy = record.build(Context(options=options or {}))
    seqs = _arrivals(random.Random(seed), num_seqs)
    _check_keys(policy, seqs[:50])
    _simulate(policy, seqs)
    for seq in seqs:
        demand(
            seq.overtaken <= PATIENCE,
            f"The seq of arrival {seq.arrival} (priority {seq.priority}, {seq.num_tokens} tokens) starved: "
            f"{seq.overtaken} later ones that were no more urgent were admitted first.",
        )

    for one, others in permutations(_KINDS, 2):
        if others.priority >= one.priority:
            _check_stream(policy, one, others)


class _Kind(NamedTuple):
    """What a policy can tell seqs apart by, beside their arrival."""

    priority: int
    adapter: str | None
    num_tokens: int


_KINDS = [_Kind(*values) for values in product((-1, 1), (None, "a"), (5, 50, 200))]


def _check_stream(policy: OrdersSeqs, one: _Kind, others: _Kind) -> None:
    """One seq among others that come as fast as they are admitted: all but `BACKLOG` of them after it."""
    waiting = [View(arrival, *others, left=1) for arrival in range(BACKLOG)]
    first = View(BACKLOG, *one, left=1)
    waiting.append(first)
    for arrival in range(BACKLOG + 1, BACKLOG + 1 + 2 * PATIENCE):
        if _admit(policy, waiting) is first:
            return
        waiting.append(View(arrival, *others, left=1))
    demand(
        first.overtaken <= PATIENCE,
        f"A seq of {one.num_tokens} tokens, priority {one.priority} and adapter {one.adapter} starved behind seqs of "
        f"{others.num_tokens} tokens, priority {others.priority} and adapter {others.adapter} that came later.",
    )


def _arrivals(rng: random.Random, count: int) -> list[View]:
    """Mostly short seqs, some twenty times as long; priorities from -1 to 1; three adapters and the base model."""
    seqs = []
    for arrival in range(count):
        tokens = rng.choice((5, 10, 10, 20, 20, 40, 200))
        adapter = rng.choice((None, "a", "a", "b"))
        seqs.append(View(arrival, rng.randint(-1, 1), adapter, tokens, left=tokens))
    return seqs


def _check_keys(policy: OrdersSeqs, seqs: list[View]) -> None:
    for key in (policy.admit_key, policy.victim_key):
        before = [key(seq) for seq in seqs]
        backwards = [key(seq) for seq in reversed(seqs)][::-1]
        demand(before == backwards, f"{key.__name__} gives one seq different keys.")
        sorted(before)
    first = min(seqs, key=policy.admit_key)
    others = [seq for seq in seqs if seq is not first and policy.victim_key(seq) != policy.victim_key(first)]
    if others:
        demand(
            max([first, *others], key=policy.victim_key) is not first,
            "The seq admitted first would be evicted first: the two would undo each other for ever.",
        )


def _simulate(policy: OrdersSeqs, seqs: list[View]) -> None:
    """Let the seqs arrive and be served, until all have arrived."""
    interval = sum(seq.num_tokens for seq in seqs) / len(seqs) / (SEATS * LOAD)
    waiting: list[View] = []
    running: list[View] = []
    now, coming = 0, 0
    while coming < len(seqs):
        while coming < len(seqs) and coming * interval <= now:
            waiting.append(seqs[coming])
            coming += 1
        while waiting and len(running) < SEATS:
            running.append(_admit(policy, waiting))
        for seq in running:
            seq.left -= 1
        running = [seq for seq in running if seq.left > 0]
        now += 1


def _admit(policy: OrdersSeqs, waiting: list[View]) -> View:
    chosen = min(waiting, key=policy.admit_key)
    waiting.remove(chosen)
    for seq in waiting:
        seq.overtaken += seq.arrival < chosen.arrival and seq.priority <= chosen.priority
    return chosen
