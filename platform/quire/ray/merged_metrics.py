"""The metrics of several replicas as one text of Prometheus: each sample with the label `replica`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from quire.ray.calls import WholeAnswer

LABEL = "replica"


def merged(answers: Sequence[WholeAnswer]) -> WholeAnswer:
    """The answers of all replicas to a request for metrics in one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(answers))
    headers = ((b"content-type", CONTENT_TYPE_LATEST.encode()),)
    return WholeAnswer(200, headers, generate_latest(registry), "")


class _Families(Collector):
    def __init__(self, answers: Sequence[WholeAnswer]) -> None:
        self._answers = answers

    def collect(self) -> Iterable[Metric]:
        """One family of each name, with the samples of all replicas."""
        found: dict[str, Metric] = {}
        for answer in self._answers:
            for family in text_string_to_metric_families(answer.body.decode()):
                ours = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    ours.samples.append(sample._replace(labels={**sample.labels, LABEL: answer.replica}))
        return found.values()
