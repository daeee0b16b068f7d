"""Shares of the running sequences and of a step's tokens, between clients and between sets of adapters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from quire.types import in_background

K = TypeVar("K", bound=Hashable)


def over_share(waiting: Mapping[K, int], running: Iterable[K], max_seqs: int) -> set[K]:
    """The waiting keys (clients, or sets of adapters) that have their share of `max_seqs` running seqs while other keys
    wait with less.

    waiting: priority of the first seq of each key. running: the key of each running seq. A key with a more urgent
    priority than all others is left out. A key that waits alone may have all running seqs.
    """
    if len(waiting) < 2:
        return set()
    counts = Counter(running)
    share = max(1, max_seqs // len(counts.keys() | waiting.keys()))
    full = {key for key in waiting if counts[key] >= share}
    return _less_urgent(full, waiting) if len(full) < len(waiting) else set()


def max_min_shares(budget: int, demands: Mapping[K, int]) -> dict[K, int]:
    """`budget` divided max-min fairly: equal shares; what a small demand leaves goes to the others.

    An indivisible rest goes to the first of those with equal demands.
    """
    shares: dict[K, int] = {}
    left = budget
    for i, key in enumerate(sorted(demands, key=lambda key: demands[key])):
        shares[key] = min(demands[key], -(-left // (len(demands) - i)))
        left -= shares[key]
    return shares


class ClientTokens:
    """Tokens computed for each client with unfinished requests: virtual token counters without weights.

    Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024. The counter of a client that comes (back)
    starts at the minimum of the others, so that idle time earns no credit. Tokens are counted only while there are
    several clients. Clients in the background only have their requests counted.
    """

    def __init__(self, tolerance: int) -> None:
        """tolerance: tokens that a client may be ahead of another one before it waits."""
        self._tolerance = tolerance
        self._num_requests: Counter[str] = Counter()
        self.tokens: dict[str, int] = {}

    @property
    def num_clients(self) -> int:
        """Clients with unfinished requests, those in the background included."""
        return len(self._num_requests)

    def add_request(self, client: str) -> None:
        if client not in self.tokens and not in_background(client):
            self.tokens[client] = min(self.tokens.values(), default=0)
        self._num_requests[client] += 1

    def remove_request(self, client: str) -> None:
        self._num_requests[client] -= 1
        if not self._num_requests[client]:
            del self._num_requests[client]
            self.tokens.pop(client, None)

    def num_requests(self, client: str) -> int:
        """Unfinished requests of a client."""
        return self._num_requests[client]

    def add_tokens(self, client: str, num_tokens: int) -> None:
        if client in self.tokens:
            self.tokens[client] += num_tokens

    def by_tokens(self, demands: Mapping[str, int]) -> dict[str, int]:
        """The demands, those of clients with the fewest tokens first."""
        return {client: demands[client] for client in sorted(demands, key=lambda client: self.tokens[client])}

    def ahead(self, waiting: Mapping[str, int]) -> set[str]:
        """The waiting clients with more tokens, beyond the tolerance, than another waiting client.

        waiting: priority of the first seq of each client, as for `over_share`.
        """
        if len(waiting) < 2:
            return set()
        least = min(self.tokens[client] for client in waiting)
        return _less_urgent({c for c in waiting if self.tokens[c] > least + self._tolerance}, waiting)


def _less_urgent(keys: set[K], waiting: Mapping[K, int]) -> set[K]:
    """Those of `keys` that are no more urgent than every other waiting key."""
    most_urgent = min((priority for key, priority in waiting.items() if key not in keys), default=0)
    return {key for key in keys if waiting[key] >= most_urgent}
