"""Caches embedding rows of media by content, within a byte budget. The least recently used are evicted first.

Rows that a seq holds are never evicted, even beyond the budget.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from quire.types import WeightedAdapter


class MediaKey(NamedTuple):
    """Identifies rows: equal keys mean equal rows. adapters: those that change the tower."""

    modality: str
    digest: str
    length: int
    adapters: tuple[WeightedAdapter, ...] = ()


@dataclass(slots=True, eq=False)
class _Entry:
    rows: Tensor
    num_holders: int = 0

    @property
    def num_bytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()


class EncoderCache:
    """Rows by key. Not thread-safe.

    max_bytes: rows that are not held stay while the total is at most this; 0: they are evicted at once. num_bytes: the
    total.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[MediaKey, _Entry] = OrderedDict()
        self.num_bytes = 0

    def __contains__(self, key: MediaKey) -> bool:
        return key in self._entries

    def put(self, key: MediaKey, rows: Tensor) -> None:
        """Add rows of a new key. They stay at least until the next `release`; hold them before that."""
        entry = _Entry(rows)
        self._entries[key] = entry
        self.num_bytes += entry.num_bytes

    def hold(self, key: MediaKey) -> None:
        """Keep cached rows until the same number of calls of `release`."""
        self._entries[key].num_holders += 1
        self._entries.move_to_end(key)

    def rows(self, key: MediaKey) -> Tensor:
        """The rows of a key that is held, [length, width]."""
        return self._entries[key].rows

    def release(self, key: MediaKey) -> None:
        """Undo one `hold`, and evict rows that are not held until the total is within the budget."""
        self._entries[key].num_holders -= 1
        if self.num_bytes <= self._max_bytes:
            return
        for old in [key for key, entry in self._entries.items() if not entry.num_holders]:
            if self.num_bytes <= self._max_bytes:
                break
            self.num_bytes -= self._entries.pop(old).num_bytes

    def clear(self) -> None:
        """Drop all rows, held or not."""
        self._entries.clear()
        self.num_bytes = 0
