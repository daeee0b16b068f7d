"""Which pools give pages and which get them. Pure functions of what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

IDLE_S = 10.0
"""A pool of a model without requests for so long gives up pages that others need."""


@dataclass(frozen=True, kw_only=True)
class PoolState:
    """One pool.

    page_bytes: of a page in all blocks. num_pages: usable now; num_over: in use beside these. share: usable at first.
    least, most: limits of `num_pages`. demands: sequences lack pages. idle_s: seconds without requests.
    """

    name: str
    page_bytes: int
    num_pages: int
    share: int
    least: int
    most: int
    num_over: int = 0
    demands: bool = False
    idle_s: float = 0.0

    @property
    def held_bytes(self) -> int:
        """Memory of usable pages, and of others that are in use."""
        return (self.num_pages + self.num_over) * self.page_bytes


def resized(pools: Sequence[PoolState], total: int) -> Mapping[str, int]:
    """The pools whose number of usable pages is to change, and their new numbers.

    total: bytes of all pools. A pool grows only by memory that no pool holds. What a pool gives up is free for a later
    call, as soon as the sequences that use it have ended. An idle pool gives up pages down to `least`; any pool does
    down to its share, for a pool that has less than its share.
    """
    free = total - sum(pool.held_bytes for pool in pools)
    promised = sum(pool.num_over * pool.page_bytes for pool in pools)
    changes: dict[str, int] = {}
    for taker in sorted(pools, key=lambda pool: pool.num_pages / pool.share):
        if not taker.demands or taker.num_pages >= taker.most or taker.name in changes:
            continue
        wanted = min(taker.most - taker.num_pages, max(1, taker.num_pages // 2))
        granted = max(0, min(wanted, free // taker.page_bytes))
        if granted:
            changes[taker.name] = taker.num_pages + granted
            free -= granted * taker.page_bytes
        missing = (wanted - granted) * taker.page_bytes - max(0, free) - promised
        for giver, floor in _givers(pools, taker):
            if missing <= 0:
                break
            has = changes.get(giver.name, giver.num_pages)
            given = min(has - floor, -(-missing // giver.page_bytes))
            if given > 0 and has <= giver.num_pages:  # it was not given pages just now
                changes[giver.name] = has - given
                missing -= given * giver.page_bytes
    return changes


def _givers(pools: Iterable[PoolState], taker: PoolState) -> Iterable[tuple[PoolState, int]]:
    """The pools that may give up pages, those idle for longest first, and how many pages they keep."""
    for pool in sorted(pools, key=lambda pool: -pool.idle_s):
        if pool is taker:
            continue
        if pool.idle_s >= IDLE_S and not pool.demands:
            yield pool, pool.least
        elif taker.num_pages < taker.share and pool.num_pages > pool.share:
            yield pool, pool.share
