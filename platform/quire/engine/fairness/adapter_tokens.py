"""Tokens computed for each set of adapters of a client: virtual token counters within the client's share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from quire.engine.fairness.shares import less_urgent
from quire.engine.scheduler.seq import QueueKey, Seq
from quire.types import AdapterRef, Request


class AdapterTokens:
    """Counts only while several clients divide steps. A set that comes (back) starts at the minimum of the client's."""

    def __init__(self, tolerance: int) -> None:
        """tolerance: tokens that a set may be ahead of another one before it waits."""
        self._tolerance = tolerance
        self._num_requests: Counter[QueueKey] = Counter()
        self._tokens: dict[str, dict[tuple[AdapterRef, ...], int]] = {}

    def add_request(self, request: Request) -> None:
        queue_key = QueueKey.from_request(request)
        self._num_requests[queue_key] += 1
        own = self._tokens.setdefault(request.client, {})
        own.setdefault(queue_key.adapters, min(own.values(), default=0))

    def remove_request(self, request: Request) -> None:
        queue_key = QueueKey.from_request(request)
        self._num_requests[queue_key] -= 1
        if not self._num_requests[queue_key]:
            del self._num_requests[queue_key]
            own = self._tokens[request.client]
            del own[queue_key.adapters]
            if not own:
                del self._tokens[request.client]

    def add_tokens(self, queue_key: QueueKey, num_tokens: int) -> None:
        self._tokens[queue_key.client][queue_key.adapters] += num_tokens

    def ahead(self, heads: Mapping[QueueKey, Seq]) -> set[QueueKey]:
        """The waiting queues whose adapters have more tokens, beyond the tolerance, than other waiting adapters of the
        same client. heads: the first seq of each queue."""
        found: set[QueueKey] = set()
        for client in {queue_key.client for queue_key in heads}:
            own = {queue_key: seq.priority for queue_key, seq in heads.items() if queue_key.client == client}
            if len(own) > 1:
                tokens = {queue_key: self._tokens[client][queue_key.adapters] for queue_key in own}
                least = min(tokens.values()) + self._tolerance
                found |= less_urgent({queue_key for queue_key in own if tokens[queue_key] > least}, own)
        return found
