"""Figures about adapters for Prometheus: where they are, how many were read, what was asked of each.

Labels with names of adapters are bounded: beyond a number of them, the one that was asked for the longest ago is
counted under "other" from then on, so that clients who load adapters without end do not fill the monitoring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.adapter_info import AdapterStats
from quire.types import EngineStats, RequestSummary

MOST_NAMES = 100
"""Adapters of all models that have series of their own."""

OTHER = "other"

_COUNTERS: Mapping[str, tuple[str, Callable[[AdapterStats], int]]] = {
    "adapter_loads": ("Adapters that were loaded.", lambda s: s.num_loads_total),
    "adapter_load_failures": ("Adapters that could not be read.", lambda s: s.num_load_failures_total),
    "adapter_reads": ("Adapters that were read again from disk.", lambda s: s.num_reads_total),
    "adapter_evictions": ("Adapters that had to leave host memory.", lambda s: s.num_evictions_total),
}


class _Use(NamedTuple):
    """What was asked of one adapter."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0

    def plus(self, other: _Use) -> _Use:
        """Both together."""
        return _Use(*(one + more for one, more in zip(self, other, strict=True)))


class AdapterMetrics(Collector):
    """`latest`: each model's newest statistics, which somebody else keeps up to date."""

    def __init__(self, prefix: str, latest: Mapping[str, EngineStats]) -> None:
        self._prefix, self._latest = prefix, latest
        self._uses: dict[tuple[str, str], _Use] = {}  # by model and adapter, the longest unused first

    def finished(self, summary: RequestSummary) -> None:
        """A request ended."""
        use = _Use(1, summary.num_prompt_tokens, summary.num_generated_tokens)
        for name in summary.adapters:
            self._add((summary.model, name), use)
        while len(self._uses) - sum(name == OTHER for _, name in self._uses) > MOST_NAMES:
            model, name = next(key for key in self._uses if key[1] != OTHER)
            self._add((model, OTHER), self._uses.pop((model, name)))

    def _add(self, key: tuple[str, str], use: _Use) -> None:
        self._uses[key] = self._uses.pop(key, _Use()).plus(use)

    def collect(self) -> Iterable[Metric]:
        """Families for models that can have adapters, and for what was asked of those."""
        stats = {model: one.adapters for model, one in self._latest.items() if one.adapters is not None}
        if stats:
            yield from self._of_models(stats)
        for i, what in enumerate(("requests", "prompt_tokens", "generation_tokens")):
            family = CounterMetricFamily(
                f"{self._prefix}adapter_{what}",
                f"{what.replace('_', ' ').capitalize()} of ended requests, by adapter.",
                labels=["model_name", "adapter_name"],
            )
            for (model, name), use in list(self._uses.items()):
                family.add_metric([model, name], use[i])
            yield family

    def _of_models(self, stats: Mapping[str, AdapterStats]) -> Iterable[Metric]:
        tiers = GaugeMetricFamily(
            f"{self._prefix}adapters", "Adapters by where their weights are.", labels=["model_name", "tier"]
        )
        size = GaugeMetricFamily(
            f"{self._prefix}adapter_memory_bytes", "What adapters take in host memory.", labels=["model_name"]
        )
        for model, one in stats.items():
            for tier, count in (("seat", one.num_seated), ("host", one.num_host), ("disk", one.num_disk)):
                tiers.add_metric([model, tier], count)
            size.add_metric([model], one.num_bytes)
        yield tiers
        yield size
        for name, (help, value) in _COUNTERS.items():
            family = CounterMetricFamily(self._prefix + name, help, labels=["model_name"])
            for model, one in stats.items():
                family.add_metric([model], value(one))
            yield family
        yield self._requests_info(stats)

    def _requests_info(self, stats: Mapping[str, AdapterStats]) -> Metric:
        """As vLLM has it, for routers that read it: one series per model, names in labels, the time as value."""
        labels = ["model_name", "max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        family = GaugeMetricFamily(
            f"{self._prefix}lora_requests_info", "Adapters with requests that run and that wait.", labels=labels
        )
        for model, one in stats.items():
            family.add_metric([model, str(one.max_seats), ",".join(one.running), ",".join(one.waiting)], time.time())
        return family
