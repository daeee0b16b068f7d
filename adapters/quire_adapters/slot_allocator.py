"""Allocates adapter slots. A released adapter keeps its slot until another needs one, the least recently used first.

So an adapter that is used again soon needs no copying.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakMethod

A = TypeVar("A")


class SlotAllocator(Generic[A]):
    """`count` slots. Any thread may call.

    put: loads an adapter into a slot. clear: removes it from the slot. Both are methods of the object that has the
    allocator, which does not keep that alive: the memory of a cycle would be freed late.
    """

    def __init__(self, count: int, put: Callable[[A, int], None], clear: Callable[[A, int], None]) -> None:
        self._put, self._clear = WeakMethod(put), WeakMethod(clear)
        self._lock = Lock()
        self._slots: list[A | None] = [None] * count
        self._idle: OrderedDict[int, A] = OrderedDict()  # released but not evicted, the least recently used first

    @property
    def occupants(self) -> tuple[A | None, ...]:
        """The adapter of each slot, whether in use or not."""
        with self._lock:
            return tuple(self._slots)

    def acquire_slot(self, adapter: A) -> int | None:
        """The slot that the adapter still has, an empty one, or that of an evicted adapter; None if all are in use."""
        with self._lock:
            if adapter not in self._slots:
                if None not in self._slots and self._idle:
                    self._evict(next(iter(self._idle)))
                if None not in self._slots:
                    return None
                slot = self._slots.index(None)
                self._slots[slot] = adapter
                _call(self._put, adapter, slot)
            slot = self._slots.index(adapter)
            self._idle.pop(slot, None)
            return slot

    def release_slot(self, adapter: A) -> None:
        """Let the slot be evicted when another adapter needs one."""
        with self._lock:
            if adapter in self._slots:
                self._idle[self._slots.index(adapter)] = adapter

    def release(self, adapter: A) -> None:
        """Empty the adapter's slot, if it has one."""
        with self._lock:
            if adapter in self._slots:
                self._evict(self._slots.index(adapter))

    def _evict(self, slot: int) -> None:
        adapter, self._slots[slot] = self._slots[slot], None
        assert adapter is not None
        _call(self._clear, adapter, slot)
        self._idle.pop(slot, None)


def _call(reference: WeakMethod[Callable[[A, int], None]], adapter: A, slot: int) -> None:
    method = reference()
    assert method is not None, "its object calls the allocator"
    method(adapter, slot)
