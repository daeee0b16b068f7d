"""The policies that choose a replica, by the names that `--data-parallel-routing` takes.

A policy must not keep state of requests: it is asked once for each, and learns nothing of their end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Protocol

from quire.routing.candidates import ReplicaCandidates

PREFIX_WORTH = 2.0
"""A token in the cache is worth so many tokens of load: it need not be computed now, nor kept twice from then on."""

ADAPTER_WORTH = 2048.0
"""What an adapter in a slot is worth, in tokens of load: reading it takes time, and its slot is another's."""

BOUND = 1.25
"""A replica with more than so many times the mean load gets no request for what it holds (consistent hashing with
bounded loads: Mirrokni, Thorup & Zadimoghaddam, arXiv 1608.01350)."""

SLACK = 2048.0
"""So much load, in tokens, may any replica have besides."""


class ReplicaChoice(Protocol):
    """What a routing policy does."""

    def choose(self, candidates: ReplicaCandidates) -> int:
        """The replica that gets the request, one of `candidates.replicas`."""
        ...


class RoundRobin:
    """One replica after another."""

    def __init__(self) -> None:
        self._turns = count()

    def choose(self, candidates: ReplicaCandidates) -> int:
        """The next one in turn."""
        return candidates.replicas[next(self._turns) % len(candidates.replicas)]


class LeastLoaded:
    """The replica with the least work; of many replicas, the better of two drawn at random (Mitzenmacher, 2001)."""

    def choose(self, candidates: ReplicaCandidates) -> int:
        """The least loaded one."""
        return candidates.least_loaded(1)[0]


class LongestPrefix:
    """The replica with the least cost: its load, less the worth of what it holds for the request.

    What a replica holds counts only while its load is bounded. A prefix or an adapter that needs more than one replica
    therefore comes to others too, and to no more than its load needs.
    """

    def choose(self, candidates: ReplicaCandidates) -> int:
        """The cheapest of the replicas that hold something, and of the least loaded ones."""
        bound = BOUND * (candidates.mean_load + candidates.work / len(candidates.replicas)) + SLACK
        cached, with_adapters = candidates.cached, candidates.with_adapters

        def cost(replica: int) -> tuple[float, tuple[int, int]]:
            load = candidates.load(replica)
            worth = PREFIX_WORTH * cached.get(replica, 0)
            if replica in with_adapters:
                worth += ADAPTER_WORTH
            return load - (worth if load + candidates.work <= bound else 0.0), candidates.order(replica)

        return min({*cached, *with_adapters, *candidates.least_loaded(2)}, key=cost)


POLICIES: Mapping[str, Callable[[], ReplicaChoice]] = {
    "prefix": LongestPrefix,
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
}
