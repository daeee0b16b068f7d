"""Tokens computed for each client, by its weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from quire.engine.fairness.adapter_tokens import AdapterTokens
from quire.engine.fairness.client_places import ClientPlaces
from quire.engine.fairness.shares import less_urgent
from quire.engine.scheduler.seq import QueueKey, Seq
from quire.types import Chunk, Request, in_background

CREDIT = 2
"""Tolerances that a client without waiting seqs may be behind the one with the most tokens, for a burst."""


class ClientTokens:
    """Tokens computed for each client with unfinished requests, divided by its weight: virtual token counters.

    Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024. The counter of a client that comes (back)
    starts at the minimum of the others, so that idle time earns no credit. One of which no seq waits is at most
    `CREDIT` behind when its next request comes. Tokens are counted only while there are several clients. Clients in the
    background only have their requests counted.

    weights: of the clients in `tokens`, each that of its last request. adapters: counters within the clients. places:
    their places among the running seqs.
    """

    def __init__(self, tolerance: int, max_num_seqs: int) -> None:
        """tolerance: tokens, by its own weight, that a client may be ahead of another one before it waits."""
        self._tolerance = tolerance
        self._num_requests: Counter[str] = Counter()
        self.tokens: dict[str, float] = {}
        self.weights: dict[str, float] = {}
        self.adapters = AdapterTokens(tolerance)
        self.places = ClientPlaces(max_num_seqs, self.weights)

    @property
    def total_weight(self) -> float:
        """Of the clients with unfinished requests, without those in the background; 1 if there are none."""
        return sum(self.weights.values()) or 1.0

    @property
    def num_clients(self) -> int:
        """Clients with unfinished requests, those in the background included."""
        return len(self._num_requests)

    def add_request(self, request: Request) -> None:
        client = request.client
        if not in_background(client):
            self.tokens.setdefault(client, min(self.tokens.values(), default=0.0))
            if self.weights.get(client) != request.weight:
                self.weights[client] = request.weight
                self.places.reset_shares()
            if self.places.all_run(client):
                leader = max(self.tokens, key=self.tokens.__getitem__)
                credit = CREDIT * self._tolerance / self.weights[leader]
                self.tokens[client] = max(self.tokens[client], self.tokens[leader] - credit)
        self._num_requests[client] += 1
        self.adapters.add_request(request)
        self.places.add_request(request)

    def remove_request(self, request: Request) -> None:
        client = request.client
        self._num_requests[client] -= 1
        if not self._num_requests[client]:
            del self._num_requests[client]
            self.tokens.pop(client, None)
            self.weights.pop(client, None)
        self.adapters.remove_request(request)
        self.places.remove_request(request)

    def num_requests(self, client: str) -> int:
        """Unfinished requests of a client."""
        return self._num_requests[client]

    def count(self, chunks: Sequence[Chunk], seqs: Mapping[int, Seq]) -> None:
        """Count the tokens of planned chunks. seqs: by id."""
        if self.num_clients < 2:
            return
        counts: dict[QueueKey, int] = {}
        for chunk in chunks:
            queue_key = seqs[chunk.seq_id].queue_key
            counts[queue_key] = counts.get(queue_key, 0) + len(chunk.token_ids)
        for queue_key, num_tokens in counts.items():
            self.add_tokens(queue_key, num_tokens)

    def add_tokens(self, queue_key: QueueKey, num_tokens: int) -> None:
        """Count tokens computed for a client with its set of adapters."""
        client = queue_key.client
        if client in self.tokens:
            self.tokens[client] += num_tokens / self.weights[client]
        self.adapters.add_tokens(queue_key, num_tokens)

    def by_tokens(self, demands: Mapping[str, int]) -> dict[str, int]:
        """The demands, those of clients with the fewest tokens first."""
        return {client: demands[client] for client in sorted(demands, key=lambda client: self.tokens[client])}

    def find_leaders(self) -> None:
        """Let clients that are ahead beyond the tolerance be the last to get places that others leave.

        A client is a leader until it is ahead by less than half of it, so that places do not go to and fro.
        """
        least, leaders = min(self.tokens.values(), default=0.0), self.places.leaders
        leads = {
            client: (tokens - least) * self.weights[client] / self._tolerance for client, tokens in self.tokens.items()
        }
        self.places.leaders = frozenset(each for each, lead in leads.items() if lead > (0.5 if each in leaders else 1))

    def ahead(self, waiting: Mapping[str, int]) -> set[str]:
        """The waiting clients with more tokens, beyond the tolerance, than another waiting client.

        waiting: priority of the first seq of each client, as for `over_share`.
        """
        if len(waiting) < 2:
            return set()
        least = min(self.tokens[client] for client in waiting)
        leads = {client: (self.tokens[client] - least) * self.weights[client] for client in waiting}
        return less_urgent({client for client in waiting if leads[client] > self._tolerance}, waiting)
