"""Adapters: the requests that use some, and which of them may begin because theirs have seats.

A request keeps the revisions it came in with. It holds its adapters' seats from when it may begin until it ends,
so whoever has begun never waits for a seat. `shelf` knows who there is, `residency` keeps weights in host memory,
`seats` gives turns, `binding` tells runtimes what a step uses. It knows no kind of adapter.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from typing import Any

from quire.adapter_info import AdapterStats
from quire.config import ModelConfig
from quire.engine.adapter import Visit
from quire.engine.adapter_reader import AdapterReader
from quire.engine.adapter_shelf import AdapterShelf
from quire.engine.binding import Binding, Failures
from quire.engine.runtimes import Runtimes
from quire.engine.seats import Seats
from quire.errors import BadRequest, NotFound
from quire.isolated_calls import IsolatedCalls
from quire.types import AdapterUse, Plan, Request

MOST_TOGETHER = 8
"""Adapters that one request may use."""

LARGEST_WEIGHT = 100.0
"""Of an adapter on a request, positive or negative."""

DEFAULT_HOST = 32
"""Adapters in host memory, unless there are more seats."""

MOST_NAMES = 64
"""Names of waiting adapters in the figures."""


class Adapters:
    """The adapters of one model, as its engine's thread uses them; `shelf` is any thread's."""

    def __init__(self, runtimes: Runtimes, config: ModelConfig, model: str, apart: IsolatedCalls) -> None:
        self._runtimes = runtimes
        self._lock = RLock()
        self._max_seats = config.max_loras
        self._most_together = min(MOST_TOGETHER, config.max_loras)
        self._reader = AdapterReader(runtimes, config.max_lora_rank, apart)
        capacity = config.max_cpu_loras or max(DEFAULT_HOST, config.max_loras)
        self.shelf = AdapterShelf(model, self._reader, capacity, self._most_together, self._lock)
        self._seats = Seats(config.max_loras, len(runtimes), self.shelf.residency)
        self._binding = Binding(runtimes)
        self._visits: dict[str, Visit] = {}

    @contextmanager
    def entering(self, request: Request) -> Iterator[Request]:
        """The request with its adapters' current revisions; it uses them once the block has ended well.

        Raises BadRequest (more than may work together, weights) and NotFound (one is not loaded).
        """
        if not request.adapters:
            yield request
            return
        uses = self._checked(request.adapters)
        with self._lock:
            adapters = tuple(self.shelf.find(use.ref.name) for use in uses)
            for adapter in adapters:
                adapter.num_users += 1
        try:
            named = zip(uses, adapters, strict=True)
            yield replace(request, adapters=tuple(replace(use, ref=adapter.ref) for use, adapter in named))
        except BaseException:
            with self._lock:
                for adapter in adapters:
                    self.shelf.left(adapter)
            raise
        with self._lock:
            self._visits[request.id] = self._seats.arrive(request.id, adapters)
            for adapter in adapters:
                adapter.num_uses += 1

    def _checked(self, uses: Sequence[AdapterUse]) -> list[AdapterUse]:
        """In order of name, so that equal sets have equal pages."""
        if not len(self._runtimes):
            raise NotFound(
                f"The adapter `{uses[0].ref.name}` is not loaded, and no adapter runtime is (--enable-lora).", "model"
            )
        if len(uses) > self._most_together:
            raise BadRequest(
                f"A request can use at most {self._most_together} adapters together, got {len(uses)}.", "adapters"
            )
        for name, times in Counter(use.ref.name for use in uses).items():
            if times > 1:
                raise BadRequest(f"`adapters` names `{name}` {times} times; once is enough.", "adapters")
        for use in uses:
            if not math.isfinite(use.weight) or abs(use.weight) > LARGEST_WEIGHT:
                raise BadRequest(
                    f"The weight of an adapter must be from -{LARGEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, got "
                    f"{use.weight}.",
                    "adapters",
                )
        return sorted(uses, key=lambda use: use.ref.name)

    def leave(self, request_id: str) -> None:
        """A request has ended; nothing if it used no adapter."""
        visit = self._visits.pop(request_id, None)
        if visit is None:
            return
        with self._lock:
            self._seats.leave(visit)
            for adapter in visit.party:
                self.shelf.left(adapter)

    def ready(self, request: Request) -> bool | None:
        """Whether its adapters, if it has some, have seats; from then on it keeps them. None: no request like it does.

        Raises what went wrong when they were read, and what their runtimes raise.
        """
        visit = self._visits.get(request.id)
        if visit is None or visit.begun:
            return True
        with self._lock:
            for adapter in visit.party:
                if adapter.error is not None:
                    raise adapter.error
            return self._seats.begin(visit) or None

    def pause(self, seconds: float) -> None:
        """Let others work if someone waits for a seat; for a loop that has nothing else to do."""
        if self._seats.anyone_waits:
            time.sleep(seconds)

    # --- steps -------------------------------------------------------------------------------------

    def follow(self, plan: Plan) -> None:
        """Take in which seqs a step forgets and which it begins."""
        for seq_id in plan.ended:
            self._binding.end(seq_id)
        for start in plan.started:
            if start.adapters:
                self._binding.start(start, self.shelf.known)

    def clear(self) -> None:
        """Forget every seq, but no request."""
        self._binding.clear()

    def bind(self, plan: Plan) -> tuple[Any, Failures]:
        """What `Forward.adapters` carries while these chunks are computed; what went wrong, by seq."""
        return self._binding.step(plan)

    def bind_rows(self, seq_ids: Sequence[int]) -> tuple[Any, Failures]:
        """What the model's head is given beside hidden states of these seqs; what went wrong, by seq."""
        return self._binding.rows(seq_ids)

    def in_tower(self, seq_id: int) -> tuple[AdapterUse, ...]:
        """The adapters of a seq that change what the model's tower makes of its media."""
        return self._binding.in_tower(seq_id)

    def bind_counts(self, seq_ids: Sequence[int], counts: Sequence[int]) -> Any:
        """What a stage of the tower carries for media of these seqs, with so many tokens each. Raises PluginFailed."""
        return self._binding.counts(seq_ids, counts)

    # --- looking and ending ------------------------------------------------------------------------

    @property
    def num_deferred(self) -> int:
        """Requests that wait for seats."""
        with self._lock:
            return self._seats.num_deferred

    def stats(self) -> AdapterStats | None:
        """Figures; None where no adapter can be."""
        if not len(self._runtimes):
            return None
        with self._lock:
            shelf, tiers = self.shelf, Counter(adapter.tier for adapter in self.shelf.known.values())
            running, waiting = self._seats.names(MOST_NAMES)
            in_memory = [adapter.facts for adapter in shelf.known.values() if adapter.loaded is not None]
            return AdapterStats(
                max_seats=self._max_seats,
                num_seated=tiers["seat"],
                num_host=tiers["host"],
                num_disk=tiers["disk"],
                num_bytes=sum(facts.num_bytes for facts in in_memory if facts),
                num_loads_total=shelf.num_loads,
                num_load_failures_total=shelf.num_failures,
                num_reads_total=shelf.num_reads,
                num_evictions_total=shelf.residency.num_evictions,
                running=running,
                waiting=waiting,
            )

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()
