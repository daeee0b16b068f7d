"""Places each request on a replica and keeps account of what every replica has and does."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from random import Random

from quire.records import RoutingPolicyImpl
from quire.routing.blocks import BLOCK_TOKENS, block_keys
from quire.routing.candidates import ReplicaCandidates
from quire.routing.holders import Holders, members
from quire.routing.loads import SEQ_TOKENS, ReplicaLoads
from quire.types import Request


@dataclass(slots=True)
class Placement:
    """A request in flight on a replica. waiting, running: what it adds to the load, until it begins and until it ends.

    num_cached: tokens of the prompt that were expected in the cache.
    """

    replica: int
    num_cached: int
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class RoutedModel:
    """What the replicas hold of one model. generations: the number of the latest load of each adapter."""

    prefixes: Holders[bytes]
    adapters: Holders[str]
    generations: dict[str, int] = field(default_factory=dict)


class RequestRouter:
    """The replicas 0 … num_replicas - 1, all available at first."""

    def __init__(self, num_replicas: int, policy: RoutingPolicyImpl, seed: int = 0) -> None:
        self.num_replicas = num_replicas
        self._policy, self._random = policy, Random(seed)
        self._loads = ReplicaLoads(num_replicas)
        self._models: dict[str, RoutedModel] = {}
        self._members: tuple[int, tuple[int, ...]] = (0, ())
        self._generations = count(1)

    @property
    def models(self) -> list[str]:
        """Names of the models."""
        return list(self._models)

    def add_model(self, name: str, cache_tokens: int, adapter_slots: int) -> None:
        """A model of which each replica keeps KV of so many tokens, and so many adapters in slots."""
        self._models[name] = RoutedModel(
            Holders(self.num_replicas, cache_tokens // BLOCK_TOKENS), Holders(self.num_replicas, adapter_slots)
        )

    def remove_model(self, name: str) -> None:
        """Forget a model that was unloaded."""
        self._models.pop(name, None)

    def place(self, model: str, request: Request, available: int) -> Placement:
        """Choose a replica of those in the mask `available`, which has at least one, and count the request there.

        Call `began` and `ended` with the placement.
        """
        held, num_tokens = self._models[model], len(request.prompt.token_ids)
        generations = [held.generations.get(use.ref.name, 0) for use in request.adapters]
        running = SEQ_TOKENS * request.params.num_seqs
        candidates = ReplicaCandidates(
            self._replicas(available),
            available,
            self._loads,
            request,
            lambda: block_keys(model, request, generations),
            held.prefixes,
            held.adapters,
            self._random,
            num_tokens + running,
        )
        replica = self._policy.choose(candidates)
        num_cached = 0
        if "keys" in candidates.__dict__:  # the policy asked for prefixes
            num_cached = candidates.cached.get(replica, 0)
            held.prefixes.use(replica, candidates.keys)
        if request.adapters:
            held.adapters.use(replica, [use.ref.name for use in request.adapters])
        placement = Placement(replica, num_cached, num_tokens - num_cached, running)
        self._loads.add(replica, placement.waiting + running)
        self._loads.num_placed[replica] += 1
        return placement

    def began(self, placement: Placement) -> None:
        """The prompt is computed."""
        self._loads.add(placement.replica, -placement.waiting)
        placement.waiting = 0

    def ended(self, placement: Placement) -> None:
        """The request has ended; a second call has no effect."""
        self._loads.add(placement.replica, -placement.waiting - placement.running)
        placement.waiting = placement.running = 0

    def restarted(self, replica: int) -> None:
        """A replica has lost its caches and adapters."""
        for held in self._models.values():
            held.prefixes.forget_replica(replica)
            held.adapters.forget_replica(replica)

    def adapter_loaded(self, model: str, name: str, replica: int) -> None:
        """A replica has loaded an adapter, perhaps again: what was computed with it before is of no use any more."""
        held = self._models.get(model)
        if held is None:
            return
        held.generations[name] = next(self._generations)
        held.adapters.forget(name)
        held.adapters.use(replica, [name])

    def adapter_unloaded(self, model: str, name: str) -> None:
        """An adapter was unloaded everywhere."""
        held = self._models.get(model)
        if held is not None:
            held.generations.pop(name, None)
            held.adapters.forget(name)

    def load(self, replica: int) -> int:
        """Work in flight of a replica, in tokens."""
        return self._loads.tokens[replica]

    def _replicas(self, mask: int) -> tuple[int, ...]:
        if self._members[0] != mask:
            self._members = mask, tuple(members(mask))
        return self._members[1]
