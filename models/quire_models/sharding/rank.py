"""One rank of those that share a model, and how counts are divided among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from quire.errors import ConfigError
from quire_kernels.attention import HeadGroups

UNITS = (128, 64, 32, 16, 8, 4, 2, 1)
"""Boundaries of columns are multiples of one of these, so that groups of quantized weights stay whole."""

MAX_EXCESS = 1.15
"""A larger unit is used if the largest share is at most that many times the mean."""


@dataclass(frozen=True)
class Rank:
    """Rank `index` of `size`.

    by_expert: experts are divided by number, not by columns. whole_groups: all query heads of a key-value head are on
    one rank, unless there are fewer key-value heads than ranks.
    """

    index: int
    size: int
    by_expert: bool = False
    whole_groups: bool = True

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
    """The query heads of a rank, and the key-value heads that they use, which other ranks may have too.

    groups: where these have unequal numbers of query heads.
    """

    queries: range
    keys: range
    groups: HeadGroups | None = None

    @classmethod
    def from_rank(cls, heads: int, kv_heads: int, rank: Rank) -> HeadShare:
        """Raises ConfigError if there are fewer query heads than ranks."""
        rank.share(heads, "attention heads")
        return _head_shares(heads, kv_heads, rank.size, rank.whole_groups)[rank.index]


@cache
def _head_shares(heads: int, kv_heads: int, size: int, whole_groups: bool) -> list[HeadShare]:
    """The shares of all ranks: those of parts of groups if the largest has fewer query heads, and none has more
    key-value heads, than the largest of whole groups.
    """
    whole = list(_shares_of_groups(heads, kv_heads, size))
    if whole_groups:
        return whole
    most = max(len(share.keys) for share in whole)
    parts = list(_shares_of_heads(heads, kv_heads, size, most))
    fits = max(len(share.keys) for share in parts) <= most
    return parts if fits and _most_queries(parts) < _most_queries(whole) else whole


def _most_queries(shares: Iterable[HeadShare]) -> int:
    return max(len(share.queries) for share in shares)


def _shares_of_groups(heads: int, kv_heads: int, size: int) -> Iterator[HeadShare]:
    """Several ranks have the same key-value head if there are fewer of these than ranks."""
    group = heads // kv_heads
    if kv_heads >= size:
        for keys in divided(kv_heads, size):
            yield HeadShare(range(keys.start * group, keys.stop * group), keys)
        return
    for head, ranks in enumerate(divided(size, kv_heads)):
        for found in divided(group, len(ranks)):
            yield HeadShare(range(head * group + found.start, head * group + found.stop), range(head, head + 1))


def _shares_of_heads(heads: int, kv_heads: int, size: int, most: int) -> Iterator[HeadShare]:
    """Equal numbers of query heads, fewer where they would need more than `most` key-value heads."""
    group, start = heads // kv_heads, 0
    for left in range(size, 0, -1):
        first = start // group
        count = -(-(heads - start) // left)
        stop = start + count if left == 1 else min(start + count, (first + most) * group)
        yield HeadShare(range(start, stop), range(first, (stop - 1) // group + 1), HeadGroups(group, start % group))
        start = stop
