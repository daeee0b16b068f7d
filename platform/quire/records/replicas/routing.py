"""Routing policies: which replica of the models computes a request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from quire.records.context import Context
from quire.types import Request


class RoutingCandidates(Protocol):
    """What a policy may ask about the replicas, for one request. Only what it asks for is computed.

    Loads are in tokens: of prompts that are still to be computed, and a fixed number for each seq.
    """

    @property
    def replicas(self) -> Sequence[int]:
        """Numbers of those that may compute the request, at least one, in order."""
        ...

    @property
    def request(self) -> Request: ...

    @property
    def work(self) -> int:
        """What the request adds to a load, if nothing of its prompt is cached."""
        ...

    @property
    def mean_load(self) -> float:
        """Load of all replicas, over the number of candidates."""
        ...

    @property
    def cached(self) -> Mapping[int, int]:
        """Tokens of the prompt that are probably in the cache, of the replicas that have most of them."""
        ...

    @property
    def with_adapters(self) -> Collection[int]:
        """Replicas that probably have all adapters of the request in slots; some of them if there are many."""
        ...

    def has(self, replica: int) -> bool:
        """Whether a replica may compute the request."""
        ...

    def load(self, replica: int) -> int:
        """Work in flight on a replica."""
        ...

    def order(self, replica: int) -> Any:
        """Sort key: the least loaded first, then the one that was chosen least."""
        ...

    def least_loaded(self, count: int) -> Sequence[int]:
        """The `count` replicas with the least load, in order; among many replicas, of some drawn at random."""
        ...


class RoutingPolicyImpl(Protocol):
    """Chooses a replica for each request, on the event loop of the server, so that it must be quick.

    It is asked once for each request, and learns nothing of the end of one.
    """

    def choose(self, candidates: RoutingCandidates) -> int:
        """The replica that gets the request, one of `candidates.replicas`."""
        ...


@dataclass(frozen=True)
class RoutingPolicy:
    """A way to divide requests among engine processes, chosen by `--data-parallel-routing`."""

    name: str
    build: Callable[[Context], RoutingPolicyImpl]
