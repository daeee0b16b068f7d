"""Prometheus figures under the names that dashboards for vLLM know, with the prefix `quire:` unless told otherwise.

Gauges and totals follow the engine's statistics, read about once a second; histograms of requests are
fed once per ended request. Nothing happens per token. It knows neither HTTP nor the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from quire.server.adapter_metrics import AdapterMetrics
from quire.server.buckets import INTER_TOKEN_S, LATENCY_S, SMALL_COUNTS, TTFT_S, token_buckets
from quire.server.engine_metrics import EngineMetrics
from quire.server.tally import Tally
from quire.types import EngineStats, ModelInfo, RequestSummary

DEFAULT_PREFIX = "quire:"

_ENGINE = {"engine": "0"}
"""A label of all figures of models, which dashboards for vLLM ask for; there is one engine for each model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """What the server saw of one ended request, beside its summary. longest: tokens of the longest of its seqs."""

    token_gaps_s: Sequence[float] = ()
    longest: int = 0


class Metrics:
    """All figures of one server, in a registry of their own."""

    def __init__(self, infos: Sequence[ModelInfo], prefix: str = DEFAULT_PREFIX) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self.registry)
        self._engines = EngineMetrics(prefix, infos)
        self.registry.register(self._engines)
        self._adapters = AdapterMetrics(prefix, self._engines.latest)
        self.registry.register(self._adapters)
        longest = max((info.max_model_len for info in infos), default=4096)
        tokens = token_buckets(longest)

        def histogram(name: str, help: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(prefix + name, help, ["model_name"], registry=self.registry, buckets=buckets)
            for info in infos:  # so that a model that has not been asked yet shows zeros
                made.labels(info.name)
            return made

        def tally(name: str, help: str, bounds: Sequence[float]) -> Tally:
            made = Tally(prefix + name, help, bounds, [info.name for info in infos])
            self.registry.register(made)
            return made

        self._iteration_tokens = tally("iteration_tokens_total", "Tokens computed per step.", tokens)
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens per request.", tokens)
        self._generated = histogram("request_generation_tokens", "Generated tokens per request.", tokens)
        self._longest = histogram("request_max_num_generation_tokens", "Tokens of a request's longest seq.", tokens)
        self._computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens that had to be computed, per request.", tokens
        )
        self._preemptions = tally(
            "request_num_preemptions", "How often seqs of a request gave up their pages.", SMALL_COUNTS
        )
        self._n = histogram("request_params_n", "The n that requests asked for.", SMALL_COUNTS)
        self._max_tokens = histogram("request_params_max_tokens", "The max_tokens that requests asked for.", tokens)
        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_S)
        self._gap = tally("inter_token_latency_seconds", "Time between tokens of a seq.", INTER_TOKEN_S)
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first.", INTER_TOKEN_S
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to end.", LATENCY_S)
        self._queue = histogram("request_queue_time_seconds", "Arrival to first step.", LATENCY_S)
        self._inference = histogram("request_inference_time_seconds", "First step to end.", LATENCY_S)
        self._prefill = histogram("request_prefill_time_seconds", "First step to first token.", LATENCY_S)
        self._decode = histogram("request_decode_time_seconds", "First token to end.", LATENCY_S)

    def observe_engine(self, stats: EngineStats) -> None:
        """Take over the figures of one model."""
        self._engines.latest[stats.model] = stats
        self._iteration_tokens.add(stats.model, stats.iteration_tokens)
        self._preemptions.add(stats.model, stats.ended_preemptions)

    def observe_plugins(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take over calls, errors and seconds per plugin."""
        self._engines.plugin_rows = rows

    def rejected(self, model: str, reason: str) -> None:
        """A request was refused before it was accepted."""
        key = (model, reason)
        self._engines.rejections[key] = self._engines.rejections.get(key, 0) + 1

    def sought_calls(self, model: str, streamed: bool, found: bool) -> None:
        """An answer of a chat with tools has ended, with or without a call."""
        mode, outcome = "streaming" if streamed else "non_streaming", "tool_call" if found else "no_tool_call"
        key = (model, mode, outcome, "chat_completions")
        self._engines.parsed[key] = self._engines.parsed.get(key, 0) + 1

    def finished(self, summary: RequestSummary, timings: Timings) -> None:
        """A request ended."""
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
            (self._inference, _plus(summary.prefill_s, summary.decode_s)),
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
        """Everything, and its content type: OpenMetrics where `accept` names it, else Prometheus' own text format."""
        encode, content_type = choose_encoder(accept)
        return encode(_WithEngine(self.registry)), content_type


def _plus(first: float | None, second: float | None) -> float | None:
    return None if first is None else first + (second or 0.0)


class _WithEngine:
    """What is collected, with a further label where there is a model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Each family."""
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, **_ENGINE}) if "model_name" in sample.labels else sample
                for sample in family.samples
            ]
            yield family
