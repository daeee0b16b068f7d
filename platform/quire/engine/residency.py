"""Residency: which adapters are in host memory. The others are on disk, to be read again when a request wants them.

The least recently used goes when another needs its room, unless it is pinned, a request holds its seat, or somebody
waits whose turn to have it in memory has come. Everything here is called under the lock of `quire.engine.adapters`.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from concurrent.futures import Future
from typing import Any

from quire.engine.adapter import Adapter, Party
from quire.errors import BadRequest


class Residency:
    """Room for `capacity` adapters.

    read: begins to read an adapter in the background; `keep` is called when that has gone well. let_go: takes what
    a runtime had loaded from it, and may do so later. wanted: who keeps its room because it works or is next, as
    `quire.engine.seats` says. changes: how often what is in memory has changed.
    """

    def __init__(
        self,
        capacity: int,
        most_together: int,
        read: Callable[[Adapter], None],
        let_go: Callable[[Adapter, Any], Future[None]],
    ) -> None:
        """most_together: how many adapters one request may need; so much room is never pinned."""
        self._capacity, self._most_pinned = capacity, capacity - most_together
        self._read, self._let_go = read, let_go
        self._places: dict[Adapter, None] = {}  # the least recently used first, those on their way too
        self._pinned: set[Adapter] = set()  # of these
        self.wanted: Set[Adapter] = frozenset()
        self.num_evictions = self.changes = 0

    @property
    def room(self) -> int:
        """How many adapters that are not pinned have room together; never fewer than one request may need."""
        return self._capacity - len(self._pinned)

    def check_pin(self, num_pinned: int) -> None:
        """Raise BadRequest if no adapter may be pinned beside so many."""
        if num_pinned >= self._most_pinned:
            raise BadRequest(
                f"No more than {max(0, self._most_pinned)} adapters can be pinned with room for {self._capacity} in "
                "host memory (--max-cpu-loras), so that others still find some.",
                "pinned",
            )

    def unpin(self, adapter: Adapter) -> None:
        """It may leave memory like any other from now on."""
        adapter.pinned = False
        self._pinned.discard(adapter)
        self.changes += 1

    def keep(self, adapter: Adapter) -> None:
        """It has been read; it stays in memory if there is room beside those that are wanted, else on disk only."""
        self.changes += 1
        if adapter not in self._places and not self._make_room():
            loaded, adapter.loaded = adapter.loaded, None
            self._let_go(adapter, loaded)
            return
        self._places[adapter] = self._places.pop(adapter, None)
        if adapter.pinned:
            self._pinned.add(adapter)

    def forget(self, adapter: Adapter) -> Future[None] | None:
        """It is not wanted in memory any more, or could not be read; what is done when its memory is free, if any."""
        self.changes += 1
        self._places.pop(adapter, None)
        self._pinned.discard(adapter)
        loaded, adapter.loaded, adapter.sits = adapter.loaded, None, False
        return None if loaded is None else self._let_go(adapter, loaded)

    def summon(self, party: Party) -> bool:
        """Whether all of these, which are wanted, are in memory; who is not is fetched as soon as there is a place."""
        here = True
        for adapter in party:
            if adapter.loaded is not None:
                self._places[adapter] = self._places.pop(adapter, None)
                continue
            here = False
            if not adapter.reading and self._make_room():
                self._places[adapter] = None
                self._read(adapter)
        return here

    def _make_room(self) -> bool:
        """Whether there is a place for one more, perhaps that of another, which is then on disk only."""
        if len(self._places) < self._capacity:
            return True
        for adapter in self._places:
            if not (adapter.reading or adapter.holders or adapter.pinned or adapter in self.wanted):
                self.num_evictions += 1
                self.forget(adapter)
                return True
        return False
