"""Conformance of scheduling policies, on a simulated queue: a number of seats, and seqs that take their time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.records import Context, OrdersSeqs, SchedulerPolicy
from quire.testing.demand import demand

SEATS = 4
LOAD = 0.8
"""Share of the seats that the arrivals would keep busy."""


@dataclass
class View:
    """A seq as a policy sees it (a `records.SeqView`)."""

    arrival: int
    priority: int
    adapter: str | None
    num_tokens: int
    left: int
    admitted_at: int | None = None


def check_policy(
    record: SchedulerPolicy, *, options: Mapping[str, Any] | None = None, seed: int = 0, num_seqs: int = 600
) -> None:
    """Keys are pure and comparable, whoever is admitted first is evicted last, and nobody starves.

    The load is bounded: seqs of mixed lengths, priorities and adapters arrive at a rate that keeps 80 % of
    the seats busy; whoever arrives in the first half must be admitted before the arrivals end.
    """
    policy = record.build(Context(options=options or {}))
    seqs = _arrivals(random.Random(seed), num_seqs)
    _check_keys(policy, seqs[:50])
    last = _simulate(policy, seqs)
    for seq in seqs[: num_seqs // 2]:
        demand(
            seq.admitted_at is not None and seq.admitted_at <= last,
            f"The seq of arrival {seq.arrival} (priority {seq.priority}, {seq.num_tokens} tokens) starved.",
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


def _simulate(policy: OrdersSeqs, seqs: list[View]) -> int:
    """Let the seqs arrive and be served; gives the time of the last arrival."""
    mean = sum(seq.num_tokens for seq in seqs) / len(seqs)
    interval = mean / (SEATS * LOAD)
    waiting: list[View] = []
    running: list[View] = []
    now, coming = 0, 0
    while coming < len(seqs):
        while coming < len(seqs) and coming * interval <= now:
            waiting.append(seqs[coming])
            coming += 1
        while waiting and len(running) < SEATS:
            chosen = min(waiting, key=policy.admit_key)
            waiting.remove(chosen)
            chosen.admitted_at = now
            running.append(chosen)
        for seq in running:
            seq.left -= 1
        running = [seq for seq in running if seq.left > 0]
        now += 1
    return now
