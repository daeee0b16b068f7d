"""What a policy may ask about the replicas, for one request. Only what it asks for is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import islice
from random import Random

from quire.routing.blocks import BLOCK_TOKENS
from quire.routing.holders import Holders, members
from quire.routing.loads import ReplicaLoads
from quire.types import Request

FEW = 32
"""Among at most so many replicas all loads are compared; among more, those of some drawn at random."""

MAX_HOLDERS = 8
"""Replicas that hold the longest prefixes or an adapter, of which the loads are compared."""


class ReplicaCandidates:
    """The replicas that may compute a request: `replicas`, at least one, in order. work: the request's, in tokens."""

    def __init__(
        self,
        replicas: Sequence[int],
        mask: int,
        loads: ReplicaLoads,
        request: Request,
        keys: Callable[[], list[bytes]],
        prefixes: Holders[bytes],
        adapters: Holders[str],
        random: Random,
        work: int,
    ) -> None:
        self.replicas, self.request, self.work = replicas, request, work
        self._mask, self._loads, self._random = mask, loads, random
        self._keys, self._prefixes, self._adapters = keys, prefixes, adapters

    def has(self, replica: int) -> bool:
        """Whether a replica is one of `replicas`."""
        return replica >= 0 and bool(self._mask >> replica & 1)

    def load(self, replica: int) -> int:
        """Work in flight, in tokens."""
        return self._loads.tokens[replica]

    def order(self, replica: int) -> tuple[int, int]:
        """Sort key: the least loaded first, then the one that was chosen least."""
        return self._loads.key(replica)

    @property
    def mean_load(self) -> float:
        """Over all replicas, those that are not available too: they have no work."""
        return self._loads.total / len(self.replicas)

    @cached_property
    def keys(self) -> list[bytes]:
        """Of the prompt's blocks."""
        return self._keys()

    @cached_property
    def cached(self) -> dict[int, int]:
        """Tokens of the prompt in the cache, of the replicas that have most of them."""
        found: dict[int, int] = {}
        for count, holders in self._prefixes.prefixes(self.keys):
            for replica in self._some(holders & self._mask, MAX_HOLDERS - len(found)):
                found[replica] = count * BLOCK_TOKENS
            if len(found) == MAX_HOLDERS:
                break
        return found

    @cached_property
    def with_adapters(self) -> frozenset[int]:
        """Replicas that have all adapters of the request in slots; some of them if there are many."""
        mask = self._mask if self.request.adapters else 0
        for use in self.request.adapters:
            mask &= self._adapters[use.ref.name]
        return frozenset(self._some(mask, MAX_HOLDERS))

    def least_loaded(self, count: int) -> Sequence[int]:
        """The `count` replicas with the least load; among many replicas, of twice as many drawn at random."""
        replicas = self.replicas
        if len(replicas) > FEW:
            replicas = self._random.sample(replicas, 2 * count)
        elif count == 1:
            return [min(replicas, key=self._loads.key)]
        return sorted(replicas, key=self._loads.key)[:count]

    def _some(self, mask: int, count: int) -> list[int]:
        """Members of a mask, `count` at most; from a random one on if there are more."""
        if mask.bit_count() <= count:
            return list(members(mask))
        first = self._random.randrange(mask.bit_length())
        found = [first + replica for replica in islice(members(mask >> first), count)]
        return found + list(islice(members(mask & ((1 << first) - 1)), count - len(found)))
