"""Fairness: shares of the running seqs and of a step's tokens, between clients and between adapters.

It says which waiting seqs are looked at first and how many tokens of a step are whose; pages and queues are others'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def crowding(waiting: Mapping[K, int], running: Iterable[K], places: int) -> set[K]:
    """Of the keys (clients, or sets of adapters) that wait, those that have their share of the places while others wait
    with less.

    waiting: the priority of the first seq of each key. running: the key of each running seq. A more urgent priority
    goes before others all the same. A key that waits alone may have all places.
    """
    if len(waiting) < 2:
        return set()
    counts = Counter(running)
    share = max(1, places // len(counts.keys() | waiting.keys()))
    full = {key for key in waiting if counts[key] >= share}
    return _less_urgent(full, waiting) if len(full) < len(waiting) else set()


def split(budget: int, demands: Mapping[K, int]) -> dict[K, int]:
    """`budget` divided max-min fairly: equal shares, and what a small demand leaves goes to the others.

    What cannot be divided goes to the first of those with equal demands.
    """
    shares: dict[K, int] = {}
    left = budget
    for i, key in enumerate(sorted(demands, key=lambda key: demands[key])):
        shares[key] = min(demands[key], -(-left // (len(demands) - i)))
        left -= shares[key]
    return shares


class ClientTokens:
    """How many tokens each client with unfinished requests was given: virtual token counters without weights.

    Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.

    A client that comes (back) begins at the least of the others, so that idleness earns no credit. Tokens are counted
    only while there are several clients.
    """

    def __init__(self, tolerance: int) -> None:
        """tolerance: tokens that a client may be ahead of another before it waits for it."""
        self._tolerance = tolerance
        self._num_requests: Counter[str] = Counter()
        self._tokens: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def enter(self, client: str) -> None:
        """A request of this client was accepted."""
        if client not in self._tokens:
            self._tokens[client] = min(self._tokens.values(), default=0)
        self._num_requests[client] += 1

    def leave(self, client: str) -> None:
        """A request of this client has ended."""
        self._num_requests[client] -= 1
        if not self._num_requests[client]:
            del self._num_requests[client], self._tokens[client]

    def num_requests(self, client: str) -> int:
        """Unfinished requests of a client."""
        return self._num_requests[client]

    def count(self, client: str, num_tokens: int) -> None:
        """So many tokens of this client are computed in a step."""
        if client in self._tokens:
            self._tokens[client] += num_tokens

    def least_first(self, demands: Mapping[str, int]) -> dict[str, int]:
        """The same, the clients in order of the tokens they were given."""
        return {client: demands[client] for client in sorted(demands, key=lambda client: self._tokens[client])}

    def ahead(self, waiting: Mapping[str, int]) -> set[str]:
        """Of the clients that wait, those that were given more than another that waits, beyond the tolerance.

        waiting: as for `crowding`.
        """
        if len(waiting) < 2:
            return set()
        least = min(self._tokens[client] for client in waiting)
        return _less_urgent({c for c in waiting if self._tokens[c] > least + self._tolerance}, waiting)


def _less_urgent(keys: set[K], waiting: Mapping[K, int]) -> set[K]:
    """Those of `keys` that are no more urgent than every other key that waits."""
    most_urgent = min((priority for key, priority in waiting.items() if key not in keys), default=0)
    return {key for key in keys if waiting[key] >= most_urgent}
