"""What each client has of a model's running sequences, pages and tokens of a step, compared with its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain

from quire.engine.fairness.shares import max_min_shares, over_share, weighted_part
from quire.engine.scheduler.seq import QueueKey, Seq, SeqGroup
from quire.engine.scheduler.state import SchedulerState
from quire.types import AdapterRef, in_background


class ClientShares:
    """Reads `state`, changes nothing. A single client's share is everything."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def max_seqs(self, client: str) -> int:
        """Sequences of a client that may run while others wait."""
        clients = self._state.clients
        return weighted_part(self._state.limits.max_num_seqs, self._weight(client), clients.total_weight)

    @property
    def num_pages_to_grow(self) -> int:
        """Pages that running seqs still need for tokens they have: only if several clients divide a step, some of these
        tokens are left for later steps."""
        if self._state.clients.num_clients < 2:
            return 0
        return sum(map(self._state.tables.num_pages_needed, self._state.running.values()))

    def num_reserved(self, group: SeqGroup) -> int:
        """Places among the running seqs kept for a request's forks, at most its client's share."""
        return min(group.num_reserved, self.max_seqs(group.request.client) - 1)

    def exceeds_max_seqs(self, seq: Seq) -> bool:
        """Whether too many seqs run for a waiting one and its forks."""
        running = self._state.running.values()
        groups = {other.arrival: other.group for other in running if other.group.num_reserved}
        reserved = sum(map(self.num_reserved, groups.values()))
        return len(running) + reserved + 1 + self.num_reserved(seq.group) > self._state.limits.max_num_seqs

    def lacks_pages(self, seq: Seq, hits: list[int], spare: int) -> bool:
        """Whether a waiting seq and the next tokens of the running ones need more pages than are available.

        hits: cached pages that the waiting seq can begin with. spare: pages that stay available.
        """
        pool = self._state.tables.pool
        num_pages = pool.pages_for(seq.num_tokens) - sum(pool.refs[page] > 0 for page in hits)
        return num_pages > pool.available - self.num_pages_to_grow - spare - self.num_reserved(seq.group)

    def client_with_most_seqs(self, seq: Seq, counts: Counter[str]) -> str | None:
        """The other client that runs the most seqs, if above its share. counts: running seqs by client."""
        others = [client for client in counts if client != seq.client]
        found = max(others, key=lambda client: counts[client] / self._weight(client), default=None)
        return found if found is not None and counts[found] > self.max_seqs(found) else None

    def client_with_most_pages(self, seq: Seq, counts: Counter[str]) -> str | None:
        """The other client that holds the most pages, if above its share.

        A client keeps its last seq: a long one would be recomputed after each preemption.
        """
        pages: Counter[str] = Counter()
        for running in self._state.running.values():
            pages[running.client] += len(running.pages)
        others = [client for client in counts if client != seq.client and counts[client] > 1]
        found = max(others, key=lambda client: pages[client] / self._weight(client), default=None)
        if found is None:
            return None
        share = int(self._state.tables.pool.num_pages * self._weight(found) / self._state.clients.total_weight)
        return found if pages[found] > share else None

    def _weight(self, client: str) -> float:
        return self._state.clients.weights.get(client, 1.0)

    def late_queues(self) -> set[QueueKey]:
        """Queues whose adapters have their share of the running seqs, or of tokens, while others wait with less."""
        heads, running = self._state.waiting.heads, self._state.running.values()
        if len(heads) < 2:
            return set()
        waiting: dict[tuple[AdapterRef, ...], int] = {}
        for queue_key, seq in heads.items():
            waiting[queue_key.adapters] = min(seq.priority, waiting.get(queue_key.adapters, seq.priority))
        full = over_share(waiting, (seq.queue_key.adapters for seq in running), self._state.limits.max_num_seqs)
        ahead = self._state.clients.adapters.ahead(heads)
        return {queue_key for queue_key in heads if queue_key.adapters in full} | ahead

    def late_clients(self, shares: Mapping[str, int]) -> set[str]:
        """Clients with their share of running seqs, of this step's tokens or of all tokens while other clients wait."""
        state, clients = self._state, self._state.clients
        if len(clients.tokens) < 2:
            return set()
        waiting: dict[str, int] = {}
        for queue_key, seq in [*state.waiting.heads.items(), *state.swapped.heads.items()]:
            if not in_background(queue_key.client):
                waiting[queue_key.client] = min(seq.priority, waiting.get(queue_key.client, seq.priority))
        running = (seq.client for seq in state.running.values() if not in_background(seq.client))
        spent = {client for client in waiting if shares and shares.get(client, 0) <= 0}
        full = over_share(waiting, running, state.limits.max_num_seqs, clients.weights)
        return full | clients.ahead(waiting) | spent

    def divide(self, limit: int, max_background: int) -> dict[str, int]:
        """Tokens of the next step by client: for those in the background what the others leave.

        max_background: at most so many tokens are for the background while other clients have requests.
        """
        demands = self._demands(limit)
        others = self._state.clients.by_tokens({c: demands[c] for c in demands if not in_background(c)})
        shares = max_min_shares(limit, others, self._state.clients.weights)
        left = limit - sum(shares.values())
        behind = {client: demands[client] for client in demands if client not in others}
        return shares | max_min_shares(min(left, max_background) if others else left, behind)

    def _demands(self, limit: int) -> dict[str, int]:
        """Tokens that each client could use in the next step, up to `limit`."""
        state, demands = self._state, dict[str, int]()
        for seq in chain(state.running.values(), state.swapped, state.waiting):
            demand = demands.get(seq.client, 0)
            if demand < limit and seq.candidates is None:
                demands[seq.client] = min(limit, demand + max(1, seq.num_tokens - seq.computed))
        return demands
