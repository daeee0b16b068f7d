"""Lets the requests of a trace arrive, be placed by the router, and be answered by simulated replicas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from quire.records import RoutingPolicyImpl
from quire.routing.router import Placement, RequestRouter
from quire_bench.report import percentile
from quire_bench.routing.replica import MODEL, ReplicaSpeed, SimulatedReplica
from quire_bench.routing.trace import Arrival

Event = tuple[float, int, Placement, bool]
"""When, a number that orders events of one time, whose, and whether the request ends or has its first token."""


@dataclass
class SimulationResult:
    """What the clients saw, and what the replicas did. ttft_s: of each request, from arrival to first token."""

    ttft_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_cached: int = 0
    num_adapted: int = 0
    num_adapter_loads: int = 0
    busy_s: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float | None]:
        """Hit rate, times to the first token, the load of the busiest replica over the mean, and adapter loads."""
        mean_busy = sum(self.busy_s) / len(self.busy_s)
        return {
            "hit_rate": self.num_cached / max(1, self.num_prompt_tokens),
            "ttft_mean_ms": 1000 * sum(self.ttft_s) / max(1, len(self.ttft_s)),
            "ttft_p50_ms": 1000 * percentile(self.ttft_s, 0.5),
            "ttft_p99_ms": 1000 * percentile(self.ttft_s, 0.99),
            "imbalance": max(self.busy_s) / mean_busy if mean_busy else 1.0,
            "adapter_loads": self.num_adapter_loads / self.num_adapted if self.num_adapted else None,
        }


class RoutingSimulation:
    """Replicas behind a router. Used for one trace."""

    def __init__(self, num_replicas: int, policy: RoutingPolicyImpl, speed: ReplicaSpeed, seed: int = 0) -> None:
        self.router = RequestRouter(num_replicas, policy, seed)
        self.router.add_model(MODEL, speed.cache_tokens, speed.slots)
        self._all = (1 << num_replicas) - 1
        self._replicas = [SimulatedReplica(speed) for _ in range(num_replicas)]
        self._events: list[Event] = []
        self._numbers = count()
        self._result = SimulationResult()

    def run(self, trace: Iterable[Arrival]) -> SimulationResult:
        """Replay a trace until the last answer has ended."""
        result = self._result
        for arrival in trace:
            self._advance(arrival.at_s)
            result.num_prompt_tokens += len(arrival.request.prompt.token_ids)
            result.num_adapted += bool(arrival.request.adapters)
            placement = self.router.place(MODEL, arrival.request, self._all)
            replica = self._replicas[placement.replica]
            if replica.has_place:
                self._begin(arrival, placement, arrival.at_s)
            else:
                replica.waiting.append((arrival, placement))
        self._advance(float("inf"))
        result.num_cached = sum(replica.num_cached for replica in self._replicas)
        result.num_adapter_loads = sum(replica.num_adapter_loads for replica in self._replicas)
        result.busy_s = [replica.busy_s for replica in self._replicas]
        return result

    def _begin(self, arrival: Arrival, placement: Placement, now_s: float) -> None:
        first_s, end_s = self._replicas[placement.replica].begin(arrival, now_s)
        self._result.ttft_s.append(first_s - arrival.at_s)
        heappush(self._events, (first_s, next(self._numbers), placement, False))
        heappush(self._events, (end_s, next(self._numbers), placement, True))

    def _advance(self, until_s: float) -> None:
        """Let everything happen that happens before a time."""
        events = self._events
        while events and events[0][0] <= until_s:
            now_s, _, placement, ends = heappop(events)
            if not ends:
                self.router.began(placement)
                continue
            self.router.ended(placement)
            replica = self._replicas[placement.replica]
            replica.num_running -= 1
            if replica.waiting:
                self._begin(*replica.waiting.popleft(), now_s)
