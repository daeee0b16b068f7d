"""All tiers beside the device's memory, from the fastest to the slowest. Models of a process share them."""

from __future__ import annotations

from collections.abc import Sequence

from quire.engine.kv_tiers.blobs import StoredPage
from quire.engine.kv_tiers.tier import Tier
from quire.types import KvTierStats


class TierStack:
    """Finds pages in the fastest tier that has them, and writes them to every tier. Any thread may call it."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.tiers = tuple(tiers)

    def find(self, keys: Sequence[str]) -> list[int]:
        """For the first keys up to one that no tier has, the number of the tier that has it."""
        found: list[int | None] = [None] * len(keys)
        for number, tier in enumerate(self.tiers):
            missing = [i for i, each in enumerate(found) if each is None]
            if not missing:
                break
            for i, has in zip(missing, tier.contains([keys[i] for i in missing]), strict=True):
                if has:
                    found[i] = number
        places: list[int] = []
        for place in found:
            if place is None:
                break
            places.append(place)
        return places

    def get(self, keys: Sequence[str], places: Sequence[int], deadline: float | None) -> list[StoredPage]:
        """The pages of the first keys up to one that is missing or late. places: of the first keys, from `find`."""
        pages: list[StoredPage] = []
        while len(pages) < len(places):
            begin, place = len(pages), places[len(pages)]
            end = begin
            while end < len(places) and places[end] == place:
                end += 1
            pages += self.tiers[place].get(keys[begin:end], deadline)
            if len(pages) < end:
                break
        return pages

    def promote(self, keys: Sequence[str], places: Sequence[int], pages: Sequence[StoredPage]) -> None:
        """Put pages that came from a slower tier into the fastest one."""
        for key, place, page in zip(keys, places, pages, strict=False):
            if place:
                self.tiers[0].put(key, page)

    def put(self, key: str, page: StoredPage, lacking: Sequence[int]) -> None:
        """Write a page to these tiers."""
        for number in lacking:
            self.tiers[number].put(key, page)

    def lacking(self, keys: Sequence[str]) -> list[list[int]]:
        """For each key, the numbers of the tiers that do not have it."""
        has = [tier.contains(keys) for tier in self.tiers]
        return [[n for n, each in enumerate(has) if not each[i]] for i in range(len(keys))]

    def stats(self) -> tuple[KvTierStats, ...]:
        return tuple(tier.stats() for tier in self.tiers)

    def close(self) -> None:
        for tier in self.tiers:
            tier.close()
