"""The server's Prometheus metrics, under the names that vLLM's dashboards use; the default prefix is `quire:`.

Gauges and totals come from the engines' statistics, which are read about once a second. Request histograms get their
values when a request ends. Nothing is done per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from quire.server.metrics.adapter_metrics import AdapterMetrics
from quire.server.metrics.client_usage import ClientUsages
from quire.server.metrics.engine_metrics import EngineMetrics, SleepOf
from quire.server.metrics.histograms import (
    INTER_TOKEN_S,
    LATENCY_S,
    SMALL_COUNTS,
    TTFT_S,
    ModelHistogram,
    token_buckets,
)
from quire.types import EngineStats, ModelInfo, RequestSummary

DEFAULT_PREFIX = "quire:"

_ENGINE = {"engine": "0"}
"""A label of all metrics of models that vLLM's dashboards require. Metrics of requests are those of all engines
together; others have the number of their engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """Measurements of one ended request beside its summary. longest: number of tokens of its longest seq."""

    token_gaps_s: Sequence[float] = ()
    longest: int = 0


class Metrics:
    """All metrics of one server, in their own registry."""

    def __init__(
        self, infos: Sequence[ModelInfo], prefix: str = DEFAULT_PREFIX, sleep_of: SleepOf = lambda name: None
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.clients = ClientUsages()
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self.registry)
        self._engines = EngineMetrics(prefix, infos, sleep_of)
        self.registry.register(self._engines)
        self._adapters = AdapterMetrics(prefix, self._engines.latest)
        self.registry.register(self._adapters)
        max_model_len = max((info.max_model_len for info in infos), default=4096)
        tokens = token_buckets(max_model_len)
        self._histograms: list[Histogram] = []
        self._model_histograms: list[ModelHistogram] = []

        def histogram(name: str, help: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(prefix + name, help, ["model_name"], registry=self.registry, buckets=buckets)
            self._histograms.append(made)
            return made

        def model_histogram(name: str, help: str, bounds: Sequence[float]) -> ModelHistogram:
            made = ModelHistogram(prefix + name, help, bounds, ())
            self._model_histograms.append(made)
            self.registry.register(made)
            return made

        self._iteration_tokens = model_histogram("iteration_tokens_total", "Tokens computed per step.", tokens)
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens per request.", tokens)
        self._generated = histogram("request_generation_tokens", "Generated tokens per request.", tokens)
        self._longest = histogram("request_max_num_generation_tokens", "Tokens of the longest sequence.", tokens)
        self._computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens that had to be computed, per request.", tokens
        )
        self._preemptions = model_histogram("request_num_preemptions", "Preemptions per request.", SMALL_COUNTS)
        self._n = histogram("request_params_n", "The parameter n of requests.", SMALL_COUNTS)
        self._max_tokens = histogram("request_params_max_tokens", "The parameter max_tokens of requests.", tokens)
        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_S)
        self._gap = model_histogram("inter_token_latency_seconds", "Time between tokens of a sequence.", INTER_TOKEN_S)
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first.", INTER_TOKEN_S
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to end.", LATENCY_S)
        self._queue = histogram("request_queue_time_seconds", "Arrival to first step.", LATENCY_S)
        self._inference = histogram("request_inference_time_seconds", "First step to end.", LATENCY_S)
        self._prefill = histogram("request_prefill_time_seconds", "First step to first token.", LATENCY_S)
        self._decode = histogram("request_decode_time_seconds", "First token to end.", LATENCY_S)
        for info in infos:
            self._start_histograms(info.name)

    def _start_histograms(self, name: str) -> None:
        """Show zeros for a model without requests."""
        for made in self._histograms:
            made.labels(name)
        for of_models in self._model_histograms:
            of_models.add(name, ())

    def add_model(self, info: ModelInfo) -> None:
        """Begin the series of a model that was loaded while others are served."""
        self._engines.add_model(info)
        self._start_histograms(info.name)

    def remove_model(self, name: str) -> None:
        """End the series of a model that was unloaded."""
        self._engines.remove_model(name)
        self._adapters.remove_model(name)
        for made in self._histograms:
            with suppress(KeyError):
                made.remove(name)
        for of_models in self._model_histograms:
            of_models.remove(name)

    def observe_engine(self, stats: EngineStats) -> None:
        """Update the metrics of one model; statistics of a model that was unloaded are ignored."""
        if not self._engines.has(stats.model):
            return
        self._engines.latest[stats.model, stats.engine] = stats
        self._iteration_tokens.add(stats.model, stats.iteration_tokens)
        self._preemptions.add(stats.model, stats.ended_preemptions)

    def observe_plugins(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Update calls, errors and seconds per plugin."""
        self._engines.plugin_rows = rows

    def rejected(self, model: str, reason: str) -> None:
        """Count a request that was rejected before the engine accepted it."""
        if not self._engines.has(model):
            return
        key = (model, reason)
        self._engines.rejections[key] = self._engines.rejections.get(key, 0) + 1

    def count_tool_parsing(self, model: str, streamed: bool, found: bool) -> None:
        """Count a response that was searched for tool calls."""
        if not self._engines.has(model):
            return
        mode, outcome = "streaming" if streamed else "non_streaming", "tool_call" if found else "no_tool_call"
        key = (model, mode, outcome, "chat_completions")
        self._engines.parsed[key] = self._engines.parsed.get(key, 0) + 1

    def finished(self, summary: RequestSummary, timings: Timings) -> None:
        """Add an ended request to the histograms and counters."""
        self.clients.finished(summary)
        if not self._engines.has(summary.model):
            return
        key = (summary.model, summary.finish_reason)
        self._engines.finished[key] = self._engines.finished.get(key, 0) + 1
        self._adapters.finished(summary)
        observations: list[tuple[Histogram, float | None]] = [
            (self._prompt, summary.num_prompt_tokens),
            (self._generated, summary.num_generated_tokens),
            (self._longest, timings.longest),
            (self._computed, max(0, summary.num_prompt_tokens - summary.num_cached_tokens)),
            (self._n, summary.n),
            (self._max_tokens, summary.max_tokens),
            (self._ttft, summary.first_token_s),
            (self._e2e, summary.e2e_s),
            (self._queue, summary.queue_s),
            (self._inference, _sum(summary.prefill_s, summary.decode_s)),
            (self._prefill, summary.prefill_s),
            (self._decode, summary.decode_s),
        ]
        if summary.decode_s is not None and summary.num_generated_tokens > summary.n:
            observations.append((self._per_token, summary.decode_s / (summary.num_generated_tokens / summary.n - 1)))
        for histogram, value in observations:
            if value is not None:
                histogram.labels(summary.model).observe(value)
        self._gap.add(summary.model, timings.token_gaps_s)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition text and its content type: OpenMetrics if `accept` names it, else Prometheus' text format."""
        encode, content_type = choose_encoder(accept)
        if isinstance(encode, partial) and encode.keywords.get("escaping") == "underscores":
            # prometheus_client 0.26 would replace the colon of a prefix too, which every client accepts.
            encode = partial(encode, escaping="allow-utf-8")
        return encode(_WithEngineLabel(self.registry)), content_type


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None else first + (second or 0.0)


class _WithEngineLabel:
    """Adds the `engine` label to samples with a model name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={**_ENGINE, **sample.labels}) if "model_name" in sample.labels else sample
                for sample in family.samples
            ]
            yield family
