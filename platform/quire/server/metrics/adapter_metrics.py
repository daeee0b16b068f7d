"""Prometheus metrics about adapters: where their weights are, how many were read, and the use of each.

The number of adapter names in labels is limited. Beyond the limit, the least recently used adapter is counted as
"other" from then on, so that clients that load adapters without end cannot overload the monitoring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.server.metrics.engine_metrics import ENGINE
from quire.types import EngineStats, RequestSummary
from quire.types.adapter_info import AdapterStats

MAX_REPORTED = 100
"""Number of adapters, over all models, with their own series."""

OTHER = "other"

_COUNTERS: Mapping[str, tuple[str, Callable[[AdapterStats], int]]] = {
    "adapter_loads": ("Adapters loaded.", lambda s: s.num_loads_total),
    "adapter_load_failures": ("Adapters that could not be read.", lambda s: s.num_load_failures_total),
    "adapter_reads": ("Adapters read again from disk.", lambda s: s.num_reads_total),
    "adapter_evictions": ("Adapters evicted from CPU memory.", lambda s: s.num_evictions_total),
}


class _Use(NamedTuple):
    """Requests and tokens of one adapter."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0

    def plus(self, other: _Use) -> _Use:
        return _Use(*(one + more for one, more in zip(self, other, strict=True)))


class AdapterMetrics(Collector):
    """Makes metric families at every scrape. `latest`: the newest statistics of each model, updated by the caller."""

    def __init__(self, prefix: str, latest: Mapping[tuple[str, int], EngineStats]) -> None:
        self._prefix, self._latest = prefix, latest
        self._uses: dict[tuple[str, str], _Use] = {}  # by model and adapter, least recently used first

    def finished(self, summary: RequestSummary) -> None:
        """Count an ended request for each of its adapters."""
        use = _Use(1, summary.num_prompt_tokens, summary.num_generated_tokens)
        for name in summary.adapters:
            self._add((summary.model, name), use)
        while len(self._uses) - sum(name == OTHER for _, name in self._uses) > MAX_REPORTED:
            model, name = next(key for key in self._uses if key[1] != OTHER)
            self._add((model, OTHER), self._uses.pop((model, name)))

    def _add(self, key: tuple[str, str], use: _Use) -> None:
        self._uses[key] = self._uses.pop(key, _Use()).plus(use)

    def remove_model(self, name: str) -> None:
        """End the series of the adapters of a model."""
        for key in [key for key in list(self._uses) if key[0] == name]:
            self._uses.pop(key, None)

    def collect(self) -> Iterable[Metric]:
        """Yields families per model that can have adapters, and families per adapter."""
        stats = {key: latest.adapters for key, latest in dict(self._latest).items() if latest.adapters is not None}
        if stats:
            yield from self._of_models(stats)
        for i, quantity in enumerate(("requests", "prompt_tokens", "generation_tokens")):
            family = CounterMetricFamily(
                f"{self._prefix}adapter_{quantity}",
                f"{quantity.replace('_', ' ').capitalize()} of ended requests, by adapter.",
                labels=["model_name", "adapter_name"],
            )
            for (model, name), use in list(self._uses.items()):
                family.add_metric([model, name], use[i])
            yield family
        yield self._running(stats)

    def _running(self, stats: Mapping[tuple[str, int], AdapterStats]) -> Metric:
        """Requests that run now, with zeros for adapters that had requests before."""
        family = GaugeMetricFamily(
            f"{self._prefix}adapter_requests_running",
            "Requests being computed, by adapter.",
            labels=["model_name", "adapter_name"],
        )
        rows = dict.fromkeys((key for key in list(self._uses) if key[1] != OTHER), 0)
        for (model, _), adapters in stats.items():
            for name, count in adapters.num_running.items():
                rows[model, name] = rows.get((model, name), 0) + count
        for (model, name), count in rows.items():
            family.add_metric([model, name], count)
        return family

    def _of_models(self, stats: Mapping[tuple[str, int], AdapterStats]) -> Iterable[Metric]:
        tiers = GaugeMetricFamily(
            f"{self._prefix}adapters", "Adapters by where their weights are.", labels=["model_name", ENGINE, "tier"]
        )
        size = GaugeMetricFamily(
            f"{self._prefix}adapter_memory_bytes", "Bytes of adapters in CPU memory.", labels=["model_name", ENGINE]
        )
        for (model, engine), adapters in stats.items():
            counts = {"device": adapters.num_loaded, "host": adapters.num_host, "disk": adapters.num_disk}
            for tier, count in counts.items():
                tiers.add_metric([model, str(engine), tier], count)
            size.add_metric([model, str(engine)], adapters.num_bytes)
        yield tiers
        yield size
        for name, (help, value) in _COUNTERS.items():
            family = CounterMetricFamily(self._prefix + name, help, labels=["model_name", ENGINE])
            for (model, engine), adapters in stats.items():
                family.add_metric([model, str(engine)], value(adapters))
            yield family
        yield self._requests_info(stats)

    def _requests_info(self, stats: Mapping[tuple[str, int], AdapterStats]) -> Metric:
        """vLLM's metric for routers: one series per model, adapter names in labels, the time as value."""
        labels = ["model_name", ENGINE, "max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        family = GaugeMetricFamily(
            f"{self._prefix}lora_requests_info", "Adapters with running and with waiting requests.", labels=labels
        )
        for (model, engine), adapters in stats.items():
            names = ",".join(adapters.running), ",".join(adapters.waiting)
            family.add_metric([model, str(engine), str(adapters.max_slots), *names], time.time())
        return family
