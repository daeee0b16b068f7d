"""What stands for an engine process in the simulation: its caches, its queue, and how long its work takes."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from quire.routing.blocks import BLOCK_TOKENS
from quire.routing.holders import Holders
from quire.routing.router import Placement
from quire.types import Request
from quire_bench.routing.trace import Arrival

MODEL = "model"
"""The name of the model that every replica has."""


@dataclass(frozen=True, kw_only=True)
class ReplicaSpeed:
    """The speed and size of a replica. By default about those of one H100 with a model of 8 billion parameters.

    prefill: tokens of prompts per second. step_s, seq_s: time of a step, and more for each seq in it. adapter_s: to put
    an adapter into a slot. cache_tokens: of the KV cache.
    """

    prefill: float = 20_000.0
    step_s: float = 0.008
    seq_s: float = 0.0001
    adapter_s: float = 0.05
    max_seqs: int = 128
    cache_tokens: int = 400_000
    slots: int = 32


class SimulatedReplica:
    """Computes prompts one after another, and generates for all running requests at once."""

    def __init__(self, speed: ReplicaSpeed) -> None:
        self._speed = speed
        self._cache: Holders[int] = Holders(1, speed.cache_tokens // BLOCK_TOKENS)
        self._slots: OrderedDict[str, None] = OrderedDict()
        self._free_at_s = 0.0
        self.num_running = 0
        self.waiting: deque[tuple[Arrival, Placement]] = deque()
        self.num_cached = self.num_adapter_loads = 0
        self.busy_s = 0.0

    @property
    def has_place(self) -> bool:
        """Whether it can begin another request."""
        return self.num_running < self._speed.max_seqs

    def begin(self, arrival: Arrival, now_s: float) -> tuple[float, float]:
        """The times of the first token and of the end of a request that begins now or when earlier prompts are done."""
        request, speed = arrival.request, self._speed
        keys = _page_keys(request)
        found = self._cache.prefixes(keys)
        cached = found[0][0] * BLOCK_TOKENS if found else 0
        self._cache.use(0, keys)
        self.num_cached += cached
        seconds = (len(request.prompt.token_ids) - cached) / speed.prefill + speed.step_s
        for use in request.adapters:
            seconds += self._load(use.ref.name)
        self.num_running += 1
        first_s = self._free_at_s = max(now_s, self._free_at_s) + seconds
        step_s = speed.step_s + speed.seq_s * self.num_running
        self.busy_s += seconds + arrival.num_generated * step_s / self.num_running
        return first_s, first_s + arrival.num_generated * step_s

    def _load(self, name: str) -> float:
        """Seconds until an adapter has a slot."""
        if name in self._slots:
            self._slots.move_to_end(name)
            return 0.0
        self._slots[name] = None
        if len(self._slots) > self._speed.slots:
            self._slots.popitem(last=False)
        self.num_adapter_loads += 1
        return self._speed.adapter_s


def _page_keys(request: Request) -> list[int]:
    """What identifies the blocks of a prompt in the cache of a replica, which need not be what the router uses."""
    token_ids, key = request.prompt.token_ids, hash(request.adapters)
    keys = []
    for start in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        key = hash((key, token_ids[start : start + BLOCK_TOKENS]))
        keys.append(key)
    return keys
