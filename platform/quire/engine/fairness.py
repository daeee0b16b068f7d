"""Fairness between adapters: nobody can fill all places with requests for one of them while others wait.

It decides nothing about seats (`quire.engine.seats` does), only who is looked at first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from quire.engine.queue import Lane
from quire.engine.seq import Seq


def crowding_lanes(heads: Mapping[Lane, Seq], running: Iterable[Seq], places: int) -> set[Lane]:
    """Of the lanes that wait, those that have their share of the places, while others wait with less.

    heads: the first seq that waits, by lane; the base model alone is a lane like any other. A seq with a more urgent
    priority goes before others all the same. With nobody else waiting a lane may have all places.
    """
    if len(heads) < 2:
        return set()
    counts = Counter(seq.lane for seq in running)
    share = max(1, places // len(counts.keys() | heads.keys()))
    full = {lane for lane in heads if counts[lane] >= share}
    if len(full) == len(heads):
        return set()
    most_urgent = min(seq.priority for lane, seq in heads.items() if lane not in full)
    return {lane for lane in full if heads[lane].priority >= most_urgent}
