"""A Prometheus histogram that takes in many values at a time. It knows nothing of what they measure.

The library's own takes a lock several times for each value, which is too much for one value per token.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Tally(Collector):
    """How many values lay below each bound, by model. One thread adds, others may collect."""

    def __init__(self, name: str, help: str, bounds: Sequence[float], models: Iterable[str]) -> None:
        """Models that are named here show zeros before their first value."""
        self._name, self._help = name, help
        self._bounds = [float(bound) for bound in bounds]
        self._labels = [*map(floatToGoString, self._bounds), "+Inf"]
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._created_s = time.time()
        for model in models:
            self.add(model, ())

    def add(self, model: str, values: Sequence[float]) -> None:
        """Take in values of a model."""
        counts = self._counts.setdefault(model, [0] * len(self._labels))
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
        self._sums[model] = self._sums.get(model, 0.0) + sum(values)

    def collect(self) -> Iterable[Metric]:
        """The one family."""
        family = HistogramMetricFamily(self._name, self._help, labels=["model_name"])
        for model, counts in list(self._counts.items()):
            buckets = list(zip(self._labels, accumulate(counts), strict=True))
            family.add_metric([model], buckets, self._sums.get(model, 0.0))
            family.add_sample(f"{self._name}_created", {"model_name": model}, self._created_s)
        yield family
