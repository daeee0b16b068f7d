"""One rank of those that share a model, and how counts are divided among them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from quire.errors import ConfigError

UNITS = (128, 64, 32, 16, 8, 4, 2, 1)
"""Boundaries of columns are multiples of one of these, so that groups of quantized weights stay whole."""

MAX_EXCESS = 1.15
"""A larger unit is used if the largest share is at most that many times the mean."""


@dataclass(frozen=True)
class Rank:
    """Rank `index` of `size`. by_expert: experts are divided by number, not by columns."""

    index: int
    size: int
    by_expert: bool = False

    def share(self, count: int, what: str) -> range:
        """Neighboring ones of `count` that this rank has; the first ranks have one more if they cannot be divided.

        Raises ConfigError, naming `what`, if there are fewer than ranks.
        """
        if count < self.size:
            raise ConfigError(
                f"--tensor-parallel-size {self.size}: the model has {count} {what}, so it can be at most {count}."
            )
        return divided(count, self.size)[self.index]

    def columns(self, count: int, what: str) -> range:
        """Like `share`, with boundaries at multiples of as large a unit as leaves the shares about equal."""
        for unit in UNITS:
            blocks = count // unit
            if count % unit == 0 and blocks >= self.size and -(-blocks // self.size) * self.size <= MAX_EXCESS * blocks:
                found = divided(blocks, self.size)[self.index]
                return range(found.start * unit, found.stop * unit)
        return self.share(count, what)


def divided(count: int, parts: int) -> list[range]:
    """`count` neighboring ones in so many ranges, the longer ones first."""
    size, longer = divmod(count, parts)
    starts = [i * size + min(i, longer) for i in range(parts + 1)]
    return [range(first, last) for first, last in pairwise(starts)]


@dataclass(frozen=True)
class HeadShare:
    """The query heads and the key-value heads of a rank. Several ranks have the same key-value head if there are
    fewer of these than ranks.
    """

    queries: range
    keys: range

    @classmethod
    def of(cls, heads: int, kv_heads: int, rank: Rank) -> HeadShare:
        """Raises ConfigError if there are fewer query heads than ranks."""
        group = heads // kv_heads
        if kv_heads >= rank.size:
            keys = rank.share(kv_heads, "key-value heads")
            return cls(range(keys.start * group, keys.stop * group), keys)
        rank.share(heads, "attention heads")  # raises if there are too few
        for head, ranks in enumerate(divided(rank.size, kv_heads)):
            if rank.index in ranks:
                found = divided(group, len(ranks))[rank.index - ranks.start]
                queries = range(head * group + found.start, head * group + found.stop)
                return cls(queries, range(head, head + 1))
        raise AssertionError("every rank has a key-value head")
