"""Residency: which adapters are in host memory. The others are on disk, to be read again when a request wants them.

The least recently used goes when another needs its room, unless it is pinned, a request holds its seat, or it was
read for requests that have not begun. Everything here is called under the lock of `quire.engine.adapters`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from quire.engine.adapter import Adapter, Party, Standing
from quire.errors import BadRequest


class Residency:
    """Room for `capacity` adapters.

    read: begins to read an adapter in the background; `keep` is called when that has gone well. let_go: takes what
    a runtime had loaded from it, and may do so later.
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
        self.num_evictions = 0

    def check_pin(self, num_pinned: int) -> None:
        """Raise BadRequest if no adapter may be pinned beside so many."""
        if num_pinned >= self._most_pinned:
            raise BadRequest(
                f"No more than {max(0, self._most_pinned)} adapters can be pinned with room for {self._capacity} in "
                "host memory (--max-cpu-loras), so that others still find some.",
                "pinned",
            )

    def keep(self, adapter: Adapter) -> None:
        """It has been read; it stays in memory if there is room, else on disk only."""
        if adapter not in self._places and not self._make_room((adapter,)):
            loaded, adapter.loaded = adapter.loaded, None
            self._let_go(adapter, loaded)
            return
        self._places[adapter] = self._places.pop(adapter, None)

    def forget(self, adapter: Adapter) -> Future[None] | None:
        """It is not wanted in memory any more, or could not be read; what is done when its memory is free, if any."""
        self._places.pop(adapter, None)
        adapter.kept_for.clear()
        loaded, adapter.loaded, adapter.sits = adapter.loaded, None, False
        return None if loaded is None else self._let_go(adapter, loaded)

    def summon(self, party: Party, may_read: bool) -> Standing:
        """Where the adapters of a request are; those that are not in memory are fetched if there is room.

        may_read: whether it may take room that is free; if not, an earlier request needs it. Raises the QuireError of
        an adapter that could not be read.
        """
        here = True
        for adapter in party:
            if may_read:
                adapter.kept_for.add(party)
            if adapter.loaded is not None:
                self._places[adapter] = self._places.pop(adapter, None)
                continue
            here = False
            if adapter.reading:
                continue
            if adapter.error is not None:
                raise adapter.error
            if not may_read or not self._make_room(party):
                return Standing.FULL
            self._places[adapter] = None
            self._read(adapter)
        return Standing.HERE if here else Standing.COMING

    def _make_room(self, needed: Party) -> bool:
        """Whether there is a place for one more, perhaps that of another, which is then on disk only."""
        if len(self._places) < self._capacity:
            return True
        for adapter in self._places:
            busy = adapter.reading or adapter.holders or adapter.pinned or adapter.kept_for
            if not busy and adapter not in needed:
                self.num_evictions += 1
                self.forget(adapter)
                return True
        return False
