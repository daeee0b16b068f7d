"""Routing policies: by cached prefixes and adapters while loads are bounded, in turn, and by load alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count

from quire.plugin import Context, RoutingCandidates, RoutingPolicy, RoutingPolicyImpl, hookimpl

PREFIX_WORTH = 2.0
"""A token in the cache is worth so many tokens of load: it need not be computed now, nor kept twice from then on."""

ADAPTER_WORTH = 4096.0
"""What an adapter in a slot is worth, in tokens of load: reading it takes time, and its slot is another's."""

BOUND = 1.25
"""A replica with more than so many times the mean load gets no request for what it holds (consistent hashing with
bounded loads: Mirrokni, Thorup & Zadimoghaddam, arXiv 1608.01350)."""

SLACK = 2048.0
"""So much load, in tokens, may any replica have besides."""


class RoundRobin:
    """One replica after another."""

    def __init__(self, context: Context) -> None:
        del context  # no settings
        self._turns = count()

    def choose(self, candidates: RoutingCandidates) -> int:
        """The next one in turn."""
        return candidates.replicas[next(self._turns) % len(candidates.replicas)]


class LeastLoaded:
    """The replica with the least work; of many replicas, the better of two drawn at random (Mitzenmacher, 2001)."""

    def __init__(self, context: Context) -> None:
        del context  # no settings

    def choose(self, candidates: RoutingCandidates) -> int:
        """The least loaded one."""
        return candidates.least_loaded(1)[0]


class LongestPrefix:
    """The replica with the least cost: its load, less the worth of what it holds for the request.

    What a replica holds counts only while its load is bounded. A prefix or an adapter that needs more than one replica
    therefore comes to others too, and to no more than its load needs.
    """

    def __init__(self, context: Context) -> None:
        del context  # no settings

    def choose(self, candidates: RoutingCandidates) -> int:
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


POLICIES: Mapping[str, Callable[[Context], RoutingPolicyImpl]] = {
    "prefix": LongestPrefix,
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
}


@hookimpl
def quire_routing_policies() -> Iterable[RoutingPolicy]:
    """The policies of `--data-parallel-routing`."""
    for name, build in POLICIES.items():
        yield RoutingPolicy(name, build)
