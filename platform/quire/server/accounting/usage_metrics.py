"""Prometheus metrics of usage: requests, tokens and device seconds by model, adapter, endpoint and tenant.

The number of label values is limited. Addresses of clients without a key never become labels, because `/metrics` may
be open to everyone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.server.accounting.sums import OTHER
from quire.types import UsageRecord

MAX_SERIES = 1000
"""Combinations of labels; further ones are counted under tenant, adapter and endpoint `other`."""

NO_KEY = "no key"
_LABELS = ("model_name", "adapter_name", "endpoint", "tenant")
_Labels = tuple[str, str, str, str]

_KINDS: Mapping[str, Callable[[UsageRecord], float]] = {
    "input": lambda r: r.input_tokens,
    "cached": lambda r: r.cached_tokens,
    "output": lambda r: r.output_tokens,
    "drafted": lambda r: r.drafted_tokens,
    "accepted": lambda r: r.accepted_tokens,
}


class UsageMetrics(Collector):
    """Counts records; makes metric families at every scrape. max_tenants: with labels of their own."""

    def __init__(self, prefix: str, max_tenants: int) -> None:
        self._prefix, self._max_tenants = prefix, max_tenants
        self._tenants: set[str] = set()
        self._tokens: dict[tuple[_Labels, str], float] = {}
        self._requests: dict[tuple[_Labels, str], int] = {}
        self._seconds: dict[_Labels, float] = {}

    def add(self, record: UsageRecord) -> None:
        """Add a record to the counters."""
        labels = (record.model, record.adapter, record.endpoint, self._tenant(record.tenant))
        if labels not in self._seconds and len(self._seconds) >= MAX_SERIES:
            labels = (record.model, OTHER, OTHER, OTHER)
        self._seconds[labels] = self._seconds.get(labels, 0.0) + record.device_s
        ended = (labels, record.outcome)
        self._requests[ended] = self._requests.get(ended, 0) + record.num_requests
        for kind, amount in _KINDS.items():
            if count := amount(record):
                self._tokens[labels, kind] = self._tokens.get((labels, kind), 0) + count

    def _tenant(self, name: str) -> str:
        """The label of a tenant. The first `max_tenants` have one of their own."""
        if name.startswith("address:"):
            return NO_KEY
        if name not in self._tenants:
            if len(self._tenants) >= self._max_tenants:
                return OTHER
            self._tenants.add(name)
        return name

    def remove_model(self, name: str) -> None:
        """End the series of a model."""
        for labels in [labels for labels in list(self._seconds) if labels[0] == name]:
            self._seconds.pop(labels, None)
        for table in (self._tokens, self._requests):
            for key in [key for key in list(table) if key[0][0] == name]:
                table.pop(key, None)

    def collect(self) -> Iterable[Metric]:
        """Yields a family for requests, for tokens and for seconds."""
        requests = self._family("usage_requests", "Ended requests, by how they ended.", "outcome")
        for (labels, outcome), count in list(self._requests.items()):
            requests.add_metric([*labels, outcome], count)
        tokens = self._family("usage_tokens", "Tokens of ended requests.", "kind")
        for (labels, kind), amount in list(self._tokens.items()):
            tokens.add_metric([*labels, kind], amount)
        seconds = self._family("usage_device_seconds", "Shares of ended requests in the seconds of steps.")
        for labels, device_s in list(self._seconds.items()):
            seconds.add_metric(labels, device_s)
        yield from (requests, tokens, seconds)

    def _family(self, name: str, help: str, *more: str) -> CounterMetricFamily:
        return CounterMetricFamily(self._prefix + name, help, labels=[*_LABELS, *more])
