"""Chairs: who has which seat. Who was let go keeps its seat until another needs one, longest unused first.

So an adapter that comes back finds everything as it left it. It knows no kind of adapter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

A = TypeVar("A")


class Chairs(Generic[A]):
    """`count` seats; `put` and `clear` are called when an adapter really takes one or stands up. Any thread may ask."""

    def __init__(self, count: int, put: Callable[[A, int], None], clear: Callable[[A, int], None]) -> None:
        self._put, self._clear = put, clear
        self._lock = Lock()
        self._at: list[A | None] = [None] * count
        self._idle: OrderedDict[int, A] = OrderedDict()  # seats that nobody holds, longest unused first

    @property
    def taken(self) -> tuple[A | None, ...]:
        """Who has which seat, whether in use or not."""
        with self._lock:
            return tuple(self._at)

    def seat(self, adapter: A) -> int | None:
        """The seat it still has, an empty one, or that of the adapter which was let go the longest ago; or None."""
        with self._lock:
            if adapter not in self._at:
                if None not in self._at and self._idle:
                    self._stand_up(next(iter(self._idle)))
                if None not in self._at:
                    return None
                seat = self._at.index(None)
                self._at[seat] = adapter
                self._put(adapter, seat)
            seat = self._at.index(adapter)
            self._idle.pop(seat, None)
            return seat

    def unseat(self, adapter: A) -> None:
        """Others may have its seat now."""
        with self._lock:
            if adapter in self._at:
                self._idle[self._at.index(adapter)] = adapter

    def release(self, adapter: A) -> None:
        """It will not come back."""
        with self._lock:
            if adapter in self._at:
                self._stand_up(self._at.index(adapter))

    def _stand_up(self, seat: int) -> None:
        adapter, self._at[seat] = self._at[seat], None
        assert adapter is not None
        self._clear(adapter, seat)
        self._idle.pop(seat, None)
