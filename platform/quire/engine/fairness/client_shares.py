"""What each client has of a model's running sequences, pages and tokens of a step, compared with its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from quire.engine.fairness.shares import complete, max_min_shares, over_share, unless_all
from quire.engine.scheduler.seq import QueueKey, Seq, SeqGroup
from quire.engine.scheduler.state import SchedulerState
from quire.types import AdapterRef, in_background

MIN_TOKENS = 8
"""Tokens left to a client in the step that begins a request of another client, if it could use them."""


class ClientShares:
    """Reads `state`, changes nothing. A single client's share is everything."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    @property
    def num_pages_to_grow(self) -> int:
        """Pages that running seqs still need for tokens they have: only if several clients divide a step, some of these
        tokens are left for later steps."""
        if self._state.clients.num_clients < 2:
            return 0
        running, num_pages_needed = self._state.running.values(), self._state.tables.num_pages_needed
        return sum(
            num_pages_needed(seq) for seq in running if len(seq.tokens) + seq.num_unknown > seq.computed + seq.in_flight
        )

    def num_reserved(self, group: SeqGroup) -> int:
        """Places among the running seqs kept for a request's forks, at most its client's share."""
        return min(group.num_reserved, self._state.clients.places.share(group.request.client) - 1)

    def num_due(self, budget: int) -> int:
        """Seqs that wait although their clients run less than their share, at most those that a step of `budget` tokens
        can begin, but 1 if there are any."""
        state, places, count = self._state, self._state.clients.places, 0
        left = budget - len(state.running)
        for queue in (state.swapped, state.waiting):
            for queue_key in queue.heads:
                num_places = places.share(queue_key.client) - places.num_running[queue_key.client]
                if num_places <= 0 or in_background(queue_key.client):
                    continue
                for seq in queue.first(queue_key, num_places):
                    left -= len(seq.tokens) - seq.computed
                    if left < 0:
                        return max(1, count)
                    count += 1
        return count

    def exceeds_max_seqs(self, seq: Seq, count: int = 1) -> bool:
        """Whether too many seqs run for `count` waiting ones and the forks of the first, `seq`."""
        running = self._state.running.values()
        num_places = self._state.limits.max_num_seqs - len(running) - count - self.num_reserved(seq.group)
        if num_places < 0:
            return True
        groups = {other.arrival: other.group for other in running if other.group.num_reserved}
        return sum(map(self.num_reserved, groups.values())) > num_places

    def lacks_pages(self, seq: Seq, hits: list[int], spare: int) -> bool:
        """Whether a waiting seq and the next tokens of the running ones need more pages than are available.

        hits: cached pages that the waiting seq can begin with. spare: pages that stay available.
        """
        pool = self._state.tables.pool
        num_pages = pool.pages_for(seq.num_tokens) - sum(pool.refs[page] > 0 for page in hits)
        return num_pages > pool.available - self.num_pages_to_grow - spare - self.num_reserved(seq.group)

    def client_with_most_seqs(self, seq: Seq) -> str | None:
        """Of the other clients that run more seqs than their share the one with the most."""
        places = self._state.clients.places
        over = {each: count for each, count in places.num_running.items() if count > places.share(each)}
        over.pop(seq.client, None)
        return max(over, key=lambda client: over[client] / self._weight(client), default=None)

    def client_with_most_pages(self, seq: Seq) -> str | None:
        """The other client that holds the most pages, if above its share.

        A client keeps its last seq: a long one would be recomputed after each preemption.
        """
        pages: Counter[str] = Counter()
        for running in self._state.running.values():
            pages[running.client] += len(running.pages)
        counts = self._state.clients.places.num_running
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
        if len({queue_key.adapters for queue_key in heads}) < 2:
            return set()
        waiting: dict[tuple[AdapterRef, ...], int] = {}
        for queue_key, seq in heads.items():
            waiting[queue_key.adapters] = min(seq.priority, waiting.get(queue_key.adapters, seq.priority))
        full = over_share(waiting, (seq.queue_key.adapters for seq in running), self._state.limits.max_num_seqs)
        ahead = self._state.clients.adapters.ahead(heads)
        return {queue_key for queue_key in heads if queue_key.adapters in full} | ahead

    def late_clients(self, shares: Mapping[str, int]) -> set[str]:
        """Clients with their share of running seqs, of this step's tokens or of all tokens while other clients wait."""
        state, clients, places = self._state, self._state.clients, self._state.clients.places
        if len(clients.tokens) < 2:
            return set()
        waiting: dict[str, int] = {}
        for queue_key, seq in [*state.waiting.heads.items(), *state.swapped.heads.items()]:
            if not in_background(queue_key.client):
                waiting[queue_key.client] = min(seq.priority, waiting.get(queue_key.client, seq.priority))
        spent = {client for client in waiting if shares and shares.get(client, 0) <= 0}
        full = {client for client in waiting if places.num_running[client] >= places.share(client)}
        return unless_all(full, waiting) | clients.ahead(waiting) | spent

    def divide(self, limit: int, max_background: int, first: Seq | None) -> dict[str, int]:
        """Tokens of the next step by client, for those in the background what the others leave; empty if the step
        suffices for all.

        max_background: at most so many tokens are for the background while other clients have requests. first: a seq
        that the step begins. The step is kept short then: the prompts of floods wait for the next.
        """
        demands, floods = self._demands(limit), self._floods(first) if first is not None else {}
        if not floods and sum(demands.values()) <= limit and not any(map(in_background, demands)):
            return {}
        for client, most in floods.items():
            demands[client] = min(demands.get(client, 0), most)
        others = self._state.clients.by_tokens({c: demands[c] for c in demands if not in_background(c)})
        shares = max_min_shares(limit, others, self._state.clients.weights)
        complete(shares, others, self._state.clients.places.num_running, limit)
        left = limit - sum(shares.values())
        behind = {client: demands[client] for client in demands if client not in others}
        return shares | max_min_shares(min(left, max_background) if others else left, behind)

    def _floods(self, first: Seq) -> dict[str, int]:
        """Tokens of this step for each other client that runs more seqs than its part by weight, has requests for more
        than its share, and has got at least as many tokens: while a client has got fewer, its prompts do not wait."""
        tokens, places = self._state.clients.tokens, self._state.clients.places
        return {
            client: max(MIN_TOKENS, min(first.num_tokens, count))
            for client, count in places.num_running.items()
            if client != first.client
            and count > places.part(client)
            and places.wants_more(client)
            and tokens.get(client, 0.0) >= tokens[first.client]
        }

    def _demands(self, limit: int) -> dict[str, int]:
        """Tokens that each client could use in the next step, up to `limit`.

        Of the seqs that wait only those count that there is a place for among the running ones.
        """
        state, places = self._state, self._state.clients.places
        demands = dict(places.num_running)  # most running seqs need one token
        for seq in state.running.values():
            if (rest := len(seq.tokens) - seq.computed) > 1 or seq.candidates is not None:
                demands[seq.client] += (0 if seq.candidates is not None else rest) - 1
        num_unclaimed = places.num_unclaimed
        for queue in (state.swapped, state.waiting):
            for queue_key in queue.heads:
                client = queue_key.client
                count = num_unclaimed + max(0, places.share(client) - places.num_running[client])
                for seq in queue.first(queue_key, count) if count else ():
                    if demands.get(client, 0) >= limit:
                        break
                    demands[client] = demands.get(client, 0) + max(1, len(seq.tokens) - seq.computed)
        return {client: min(limit, demand) for client, demand in demands.items()}
