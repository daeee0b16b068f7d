"""What each client has of a model's places, pages and tokens of a step, and what its share of them is.

It changes nothing: the planner preempts and plans.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from quire.engine.roster import Roster
from quire.engine.seq import Group, Seq


class ClientShares:
    """Reads a roster. With one client its share is everything."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    @property
    def places(self) -> int:
        """Sequences of each client that may run while others wait."""
        return max(1, self._roster.limits.max_num_seqs // max(1, len(self._roster.clients)))

    @property
    def growth(self) -> int:
        """Pages that running seqs still need for tokens they have: a step leaves some to them only if several clients
        divide it."""
        if len(self._roster.clients) < 2:
            return 0
        return sum(map(self._roster.tables.need, self._roster.running.values()))

    def reserve(self, group: Group) -> int:
        """Places kept for a request's forks: for all, but no more than its client's share if there are several."""
        return min(group.reserve, self.places - 1)

    def lacks_places(self, seq: Seq) -> bool:
        """Whether too many seqs run for a waiting one and its forks."""
        running = self._roster.running.values()
        groups = {other.arrival: other.group for other in running if other.group.reserve}
        reserved = sum(map(self.reserve, groups.values()))
        return len(running) + reserved + 1 + self.reserve(seq.group) > self._roster.limits.max_num_seqs

    def lacks_pages(self, seq: Seq, hits: list[int], spare: int) -> bool:
        """Whether a waiting seq and the next tokens of those that run need more pages than there are.

        hits: cached pages that the waiting one can begin with. spare: pages that stay free.
        """
        pool = self._roster.tables.pool
        need = pool.pages_for(seq.num_tokens) - sum(pool.refs[page] > 0 for page in hits)
        return need > pool.available - self.growth - spare - self.reserve(seq.group)

    def with_most_places(self, seq: Seq, counts: Counter[str]) -> str | None:
        """Of the other clients the one that runs the most seqs above its share. counts: running seqs by client."""
        others = [client for client in counts if client != seq.client]
        most = max(others, key=lambda client: counts[client], default=None)
        return most if most is not None and counts[most] > self.places else None

    def with_most_pages(self, seq: Seq, counts: Counter[str]) -> str | None:
        """Of the other clients the one that holds the most pages above its share.

        A client keeps its last seq: a long one would be computed anew each time.
        """
        pages: Counter[str] = Counter()
        for running in self._roster.running.values():
            pages[running.client] += len(running.pages)
        others = [client for client in counts if client != seq.client and counts[client] > 1]
        most = max(others, key=lambda client: pages[client], default=None)
        share = self._roster.tables.pool.num_pages // len(self._roster.clients)
        return most if most is not None and pages[most] > share else None

    def demands(self, limit: int) -> dict[str, int]:
        """Tokens that each client could use in the next step, up to `limit`."""
        roster, demands = self._roster, dict[str, int]()
        for seq in chain(roster.running.values(), roster.swapped, roster.waiting):
            demand = demands.get(seq.client, 0)
            if demand < limit and seq.candidates is None:
                demands[seq.client] = min(limit, demand + max(1, seq.num_tokens - seq.computed))
        return demands
