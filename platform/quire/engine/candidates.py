"""Candidates: which of the seqs that don't run comes in next.

Seqs that were swapped out come before those that never ran, and both stand in the order of the policy; but clients
and adapters that have had their share come after the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from quire.engine.fairness import crowding
from quire.engine.roster import Roster
from quire.engine.seq import Lane, Seq
from quire.types import AdapterRef, Request


class Candidates:
    """Looks through a roster's queues.

    ready: whether a request may begin or resume now; None = neither may others with the same adapters.
    """

    def __init__(self, roster: Roster, ready: Callable[[Request], bool | None]) -> None:
        self._roster = roster
        self._ready = ready

    def first(self, shares: Mapping[str, int], late: set[str]) -> Seq | None:
        """The seq that comes in next, if there is one.

        shares: tokens that are left in this step, by client; empty = not divided. Those of a client that has used up
        its share come after the others', and so do those of clients in `late`.
        """
        late = late | self._late_clients(shares)
        for is_late in (False, True) if late else (False,):
            found = next(self._ready_ones(late, is_late), None)
            if found is not None:
                return found
        return None

    def _ready_ones(self, late: set[str], is_late: bool) -> Iterator[Seq]:
        roster = self._roster

        def takes(client: str) -> bool:
            return (client in late) is is_late

        for queue, behind in ((roster.swapped, set[Lane]()), (roster.waiting, self._crowded_lanes())):
            closed: set[Lane] = set()
            for seq in queue.in_turn(behind, closed, takes):
                ready = seq.candidates is None and self._ready(seq.group.request)
                if ready:
                    yield seq
                if ready is None:
                    closed.add(seq.lane)

    def _crowded_lanes(self) -> set[Lane]:
        """Lanes whose adapters have their share of the places while others wait with less."""
        heads, running = self._roster.waiting.heads, self._roster.running.values()
        if len(heads) < 2:
            return set()
        waiting: dict[tuple[AdapterRef, ...], int] = {}
        for lane, seq in heads.items():
            waiting[lane.adapters] = min(seq.priority, waiting.get(lane.adapters, seq.priority))
        full = crowding(waiting, (seq.lane.adapters for seq in running), self._roster.limits.max_num_seqs)
        return {lane for lane in heads if lane.adapters in full}

    def _late_clients(self, shares: Mapping[str, int]) -> set[str]:
        """Clients that have their share of the places, of this step or of the tokens so far, while others wait."""
        roster = self._roster
        if len(roster.clients) < 2:
            return set()
        waiting: dict[str, int] = {}
        for lane, seq in [*roster.waiting.heads.items(), *roster.swapped.heads.items()]:
            waiting[lane.client] = min(seq.priority, waiting.get(lane.client, seq.priority))
        running = (seq.client for seq in roster.running.values())
        spent = {client for client in waiting if shares and shares.get(client, 0) <= 0}
        return crowding(waiting, running, roster.limits.max_num_seqs) | roster.clients.ahead(waiting) | spent
