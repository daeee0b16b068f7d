"""SeqQueue: seqs that are not running, in the order in which the policy wants them.

Each lane, the seqs of one client that need the same adapters, stands in that order, and the lanes are merged. It knows
nothing of pages. Keys are computed when a seq enters, since nothing that a policy may look at changes while a seq
stands here.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable, Container, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Any

from quire.engine.policy import Policy
from quire.engine.seq import Lane, Seq
from quire.errors import PluginFailed

log = logging.getLogger(__name__)

Entry = tuple[Any, int, int, Seq]


class SeqQueue:
    """Sorted by `admit_key`, then arrival, then age of the seq."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._keyless = False
        self._lanes: dict[Lane, list[Entry]] = {}
        self._front: list[Entry] = []  # accepted seqs on which the policy failed afterwards

    def __len__(self) -> int:
        return len(self._front) + sum(map(len, self._lanes.values()))

    def __iter__(self) -> Iterator[Seq]:
        return (entry[3] for entry in chain(self._front, *self._lanes.values()))

    @property
    def heads(self) -> dict[Lane, Seq]:
        """The first seq of each lane."""
        return {lane: entries[0][3] for lane, entries in self._lanes.items()}

    def in_turn(
        self,
        behind: Container[Lane] = (),
        closed: Container[Lane] = (),
        takes: Callable[[str], bool] = lambda client: True,
    ) -> Iterator[Seq]:
        """Seqs in order, those of lanes in `behind` after the others, of the clients that `takes` says yes to.

        The rest of a lane is left out as soon as it is in `closed`, which may change between two seqs.
        """
        self._follow()
        yield from [entry[3] for entry in self._front if takes(entry[3].client)]
        lanes = {lane: entries for lane, entries in self._lanes.items() if takes(lane.client)}
        heap = [(lane in behind, *entries[0][:3], 0, lane) for lane, entries in lanes.items()]
        try:
            heapify(heap)
            while heap:
                last, _, _, _, i, lane = heap[0]
                entries = lanes[lane]
                yield entries[i][3]
                if lane in closed or i + 1 == len(entries):
                    heappop(heap)
                else:
                    heapreplace(heap, (last, *entries[i + 1][:3], i + 1, lane))
        except Exception as error:  # a plugin's keys, compared
            fault = self._policy.fault(error)
            log.warning("The scheduling policy's keys cannot be compared; seqs go in order of arrival. %s", fault)
            late = [seq for seq in self if takes(seq.client)]
            yield from sorted(late, key=lambda seq: (seq.arrival, seq.id))

    def push(self, seq: Seq) -> None:
        """Put a seq in its place. Raises PluginFailed when the policy cannot tell where that is."""
        try:
            key = self._policy.admit_key(seq)
        except PluginFailed as error:
            raise PluginFailed(f"The scheduling policy could not place the request. {error.message}") from error
        self._follow()
        lane = seq.lane
        try:
            insort(self._lanes.setdefault(lane, []), (key, seq.arrival, seq.id, seq))
        except Exception as error:  # its keys cannot be compared
            if not self._lanes[lane]:
                del self._lanes[lane]
            fault = self._policy.fault(error)
            raise PluginFailed(f"The scheduling policy could not place the request. {fault.message}") from error

    def _follow(self) -> None:
        """If the policy was switched off, all who stand here go in order of arrival."""
        if self._policy.off and not self._keyless:
            self._keyless = True
            for entries in self._lanes.values():
                entries[:] = sorted((None, *entry[1:]) for entry in entries)

    def put_back(self, seq: Seq) -> None:
        """Like `push`, for a seq that was accepted long ago: a policy that fails now puts it in front."""
        try:
            self.push(seq)
        except PluginFailed:
            log.exception("A seq goes first because the scheduling policy failed on it.")
            self._front.append((None, seq.arrival, seq.id, seq))

    def remove(self, seq: Seq) -> None:
        """Take a seq out, wherever it stands; the first ones are found first."""
        lane = seq.lane
        for entries in (self._front, self._lanes.get(lane, [])):
            for i, entry in enumerate(entries):
                if entry[3] is seq:
                    del entries[i]
                    if entries is not self._front and not entries:
                        del self._lanes[lane]
                    return
        raise AssertionError(f"seq {seq.id} is not in this queue")
