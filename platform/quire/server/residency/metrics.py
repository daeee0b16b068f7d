"""Prometheus metrics of models that come and go."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

LOAD_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Bounds of the histogram of seconds that loads take."""

REASONS = ("idle", "memory")
"""Why a model was unloaded by itself."""


class ResidencyMetrics(Collector):
    """Counts loads and unloads; the rest is read at each scrape.

    states: state of each model. num_waiting: requests that wait for models. memory: bytes by kind (`budget`,
    `models`), empty if they are not known.
    """

    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self._prefix = prefix
        self._loads: Counts[str] = Counts()
        self._failures: Counts[str] = Counts()
        self._evictions: Counts[tuple[str, str]] = Counts()
        self._seconds = Histogram(
            f"{prefix}model_load_seconds", "Time to load a model on demand.", registry=registry, buckets=LOAD_S
        )
        self.states: Callable[[], Mapping[str, str]] = dict
        self.num_waiting: Callable[[], int] = int
        self.memory: Callable[[], Mapping[str, float]] = dict
        registry.register(self)

    def loaded(self, name: str, seconds: float) -> None:
        """Count a load on demand."""
        self._loads[name] += 1
        self._seconds.observe(seconds)

    def failed(self, name: str) -> None:
        """Count a load that has failed."""
        self._failures[name] += 1

    def evicted(self, name: str, reason: str) -> None:
        """Count a model that was unloaded by itself. reason: one of `REASONS`."""
        self._evictions[name, reason] += 1

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are known only at a scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yields one family per metric."""
        prefix, by_model = self._prefix, ["model_name"]
        loads = CounterMetricFamily(f"{prefix}model_loads", "Loads of a model on demand.", labels=by_model)
        failures = CounterMetricFamily(f"{prefix}model_load_failures", "Loads that have failed.", labels=by_model)
        evictions = CounterMetricFamily(
            f"{prefix}model_evictions",
            "Models unloaded because they were idle, or memory was needed.",
            labels=["model_name", "reason"],
        )
        state = GaugeMetricFamily(
            f"{prefix}model_state", "State of a model, as a label; always 1.", labels=["model_name", "state"]
        )
        for name, now in self.states().items():
            loads.add_metric([name], self._loads[name])
            failures.add_metric([name], self._failures[name])
            state.add_metric([name, now], 1)
            for reason in REASONS:
                evictions.add_metric([name, reason], self._evictions[name, reason])
        yield from (loads, failures, evictions, state)
        yield GaugeMetricFamily(
            f"{prefix}requests_waiting_for_models",
            "Requests that wait for their model to be loaded.",
            value=self.num_waiting(),
        )
        memory = GaugeMetricFamily(
            f"{prefix}memory_bytes",
            "Memory: the budget, what models take of it by the account, and what the processes take as measured.",
            labels=["kind"],
        )
        for kind, value in self.memory().items():
            memory.add_metric([kind], value)
        yield memory
