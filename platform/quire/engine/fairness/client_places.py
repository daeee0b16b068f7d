"""The places among the running sequences that each client may have, and those that it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from quire.engine.fairness.shares import max_min_places, weighted_part
from quire.types import Request, in_background


class ClientPlaces:
    """Divides `max_num_seqs` among clients with unfinished requests, max-min fairly: each may have its part by weight,
    and places that a client has no seqs for go to the others by weight, to `leaders` last.

    num_running: running seqs by client, only of clients that have some. weights: of clients not in the background.
    """

    def __init__(self, max_num_seqs: int, weights: Mapping[str, float]) -> None:
        self._max_num_seqs, self._weights = max_num_seqs, weights
        self.num_running: Counter[str] = Counter()
        self._num_seqs: Counter[str] = Counter()
        self._shares: dict[str, int] | None = None
        self._leaders: frozenset[str] = frozenset()

    @property
    def leaders(self) -> frozenset[str]:
        return self._leaders

    @leaders.setter
    def leaders(self, leaders: frozenset[str]) -> None:
        if leaders != self._leaders:
            self._leaders, self._shares = leaders, None

    def add_request(self, request: Request) -> None:
        if not self._lacks_places(request.client):
            self._shares = None
        self._num_seqs[request.client] += request.params.num_seqs

    def remove_request(self, request: Request) -> None:
        self._num_seqs[request.client] -= request.params.num_seqs
        if not self._lacks_places(request.client):
            self._shares = None
        if not self._num_seqs[request.client]:
            del self._num_seqs[request.client]

    def _lacks_places(self, client: str) -> bool:
        """Whether a client wants more places than it gets: then the shares do not depend on how many more."""
        return self._shares is not None and self._num_seqs[client] > self._shares.get(client, self._max_num_seqs)

    def reset_shares(self) -> None:
        """Divide anew: a weight has changed."""
        self._shares = None

    def start(self, client: str) -> None:
        """Count a seq that begins to run."""
        self.num_running[client] += 1

    def stop(self, client: str) -> None:
        """Count a seq that runs no more."""
        self.num_running[client] -= 1
        if not self.num_running[client]:
            del self.num_running[client]

    @property
    def shares(self) -> Mapping[str, int]:
        """Seqs of each client, but those in the background, that may run while others wait; at least 1."""
        if self._shares is None:
            wanted = {each: count for each, count in self._num_seqs.items() if not in_background(each)}
            self._shares = max_min_places(self._max_num_seqs, wanted, self._weights, self._leaders)
        return self._shares

    def share(self, client: str) -> int:
        """Seqs of a client that may run while others wait; in the background as if its weight was 1."""
        return self.shares.get(client) or self.part(client)

    @property
    def num_unclaimed(self) -> int:
        """Free places beyond those that clients lack to their shares."""
        shares, num_running = self.shares, self.num_running
        taken = sum(max(shares.get(each, 0), num_running[each]) for each in shares.keys() | num_running.keys())
        return max(0, self._max_num_seqs - taken)

    def all_run(self, client: str) -> bool:
        """Whether no seq of a client waits, as far as its requests tell."""
        return self._num_seqs[client] <= self.num_running[client]

    def wants_more(self, client: str) -> bool:
        """Whether a client has requests for more seqs than may run while others wait."""
        return self._num_seqs[client] > self.share(client)

    def part(self, client: str) -> int:
        """Places of a client by its weight; at least 1."""
        total = sum(self._weights.values()) or 1.0
        return weighted_part(self._max_num_seqs, self._weights.get(client, 1.0), total)
