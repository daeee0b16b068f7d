"""One reading of a server's /metrics, whatever the prefix of the names is."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from quire.commands.remote import RemoteError

MARK = "num_requests_running"
"""A metric that every server has; what precedes it in a name is the prefix of all names."""

MAX_BYTES = 32 << 20
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class MetricSample:
    """One sample of a metric."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class Scrape:
    """All samples of one moment, by name without the prefix. at_s: the moment, in seconds of a monotonic clock."""

    at_s: float
    samples: Mapping[str, Sequence[MetricSample]]

    def __getitem__(self, name: str) -> Sequence[MetricSample]:
        return self.samples.get(name, ())

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric with these labels."""
        return sum(sample.value for sample in self[name] if labels.items() <= sample.labels.items())

    def mean(self, name: str, **labels: str) -> float:
        """The mean of the samples of a metric with these labels, one for each engine process; 0 if there are none."""
        found = [sample.value for sample in self[name] if labels.items() <= sample.labels.items()]
        return sum(found) / len(found) if found else 0.0

    def labels(self, name: str, label: str) -> list[str]:
        """The values that a label of a metric has, in order of appearance."""
        return list(dict.fromkeys(s.labels[label] for s in self[name] if label in s.labels))


def parse(text: str, at_s: float) -> Scrape:
    """Parse Prometheus' text format. Raises RemoteError if it is not that, or not the metrics of a server."""
    try:
        found = list(_samples(text))
    except ValueError as error:
        raise RemoteError(f"The answer is not in Prometheus' text format: {error}") from error
    prefix = next((name.removesuffix(MARK) for name, _ in found if name.endswith(MARK)), None)
    if prefix is None:
        raise RemoteError(f"The answer has no metric {MARK}, with any prefix: this is not a server of models.")
    samples = defaultdict(list)
    for name, sample in found:
        samples[name.removeprefix(prefix)].append(sample)
    return Scrape(at_s, samples)


def _samples(text: str) -> Iterator[tuple[str, MetricSample]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, MetricSample(sample.labels, sample.value)


def read(client: httpx.Client, url: str) -> Scrape:
    """The metrics of the server at a URL with or without /v1. Raises RemoteError if it does not answer with any."""
    address = f"{url.rstrip('/').removesuffix('/v1')}/metrics"
    try:
        with client.stream("GET", address, timeout=TIMEOUT_S) as reply:
            body = b""
            for part in reply.iter_bytes():
                body += part
                if len(body) > MAX_BYTES:
                    raise RemoteError(f"{address} has more than {MAX_BYTES} bytes.")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RemoteError(f"No server responds at {address}: {error}") from error
    if reply.status_code == 401:
        raise RemoteError(f"{address} needs an API key: --api-key, or the variable OPENAI_API_KEY.")
    if reply.status_code != 200:
        raise RemoteError(f"{address} answered {reply.status_code}.")
    return parse(body.decode("utf-8", "replace"), time.monotonic())
