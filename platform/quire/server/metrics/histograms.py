"""Histogram buckets as vLLM's dashboards expect them, and a Prometheus histogram that takes many values at a time.

prometheus_client's `Histogram` takes a lock several times per value, which is too slow for one value per token.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_S = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
SMALL_COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def token_buckets(max_tokens: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, … up to `max_tokens`."""
    edges: list[float] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > max_tokens:
                return tuple(edges) or (1.0,)
            edges.append(float(digit * power))
        power *= 10


class ModelHistogram(Collector):
    """Counts values per bucket and model. One thread adds, others may collect."""

    def __init__(self, name: str, help: str, bounds: Sequence[float], models: Iterable[str]) -> None:
        """`models` have zero counts before their first value."""
        self._name, self._help = name, help
        self._bounds = [float(bound) for bound in bounds]
        self._labels = [*map(floatToGoString, self._bounds), "+Inf"]
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._created_s = time.time()
        for model in models:
            self.add(model, ())

    def add(self, model: str, values: Sequence[float]) -> None:
        counts = self._counts.setdefault(model, [0] * len(self._labels))
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
        self._sums[model] = self._sums.get(model, 0.0) + sum(values)

    def remove(self, model: str) -> None:
        """End the series of a model."""
        self._counts.pop(model, None)
        self._sums.pop(model, None)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=["model_name"])
        for model, counts in list(self._counts.items()):
            buckets = list(zip(self._labels, accumulate(counts), strict=True))
            family.add_metric([model], buckets, self._sums.get(model, 0.0))
            family.add_sample(f"{self._name}_created", {"model_name": model}, self._created_s)
        yield family
