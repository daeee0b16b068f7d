"""Which replicas hold a key: a prefix in the KV cache, or an adapter in a slot. A set of replicas is a bit mask."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Holders(Generic[K]):
    """For each replica the keys that it used last, at most `capacity` of them, as a replica itself keeps them."""

    def __init__(self, num_replicas: int, capacity: int) -> None:
        self._capacity = capacity
        self._recent: list[OrderedDict[K, None]] = [OrderedDict() for _ in range(num_replicas)]
        self._masks: dict[K, int] = {}

    def __getitem__(self, key: K) -> int:
        """The replicas that hold a key."""
        return self._masks.get(key, 0)

    def prefixes(self, keys: Sequence[K]) -> list[tuple[int, int]]:
        """(number of leading keys, replicas that hold exactly these), the most keys first; without those with none."""
        masks, found = self._masks, []
        holding = -1
        for count, key in enumerate(keys):
            holders = holding & masks.get(key, 0)
            if holders != holding and count:
                found.append((count, holding & ~holders))
            holding = holders
            if not holding:
                break
        else:
            if keys:
                found.append((len(keys), holding))
        found.reverse()
        return found

    def use(self, replica: int, keys: Sequence[K]) -> None:
        """A replica uses these keys. Of those used at once, the last ones are forgotten first, as pages are evicted."""
        recent, masks, bit = self._recent[replica], self._masks, 1 << replica
        for key in reversed(keys):
            if key in recent:
                recent.move_to_end(key)
            else:
                recent[key] = None
                masks[key] = masks.get(key, 0) | bit
        while len(recent) > self._capacity:
            self._clear(recent.popitem(last=False)[0], bit)

    def forget_replica(self, replica: int) -> None:
        """A replica holds nothing any more."""
        for key in self._recent[replica]:
            self._clear(key, 1 << replica)
        self._recent[replica].clear()

    def forget(self, key: K) -> None:
        """No replica holds this key any more."""
        for replica in members(self._masks.pop(key, 0)):
            self._recent[replica].pop(key, None)

    def _clear(self, key: K, bit: int) -> None:
        left = self._masks[key] & ~bit
        if left:
            self._masks[key] = left
        else:
            del self._masks[key]


def members(mask: int) -> Iterator[int]:
    """The replicas of a mask, in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
