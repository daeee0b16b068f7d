"""Prometheus figures under the names that dashboards for vLLM know, with the prefix `quire:`.

Gauges and totals follow the engine's statistics, read about once a second; histograms of requests are
fed once per ended request. Nothing happens per token. It knows neither HTTP nor the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.server.adapter_metrics import AdapterMetrics
from quire.server.buckets import INTER_TOKEN_S, LATENCY_S, SMALL_COUNTS, TTFT_S, token_buckets
from quire.server.tally import Tally
from quire.types import EngineStats, ModelInfo, RequestSummary

PREFIX = "quire:"

_GAUGES: Mapping[str, tuple[str, Callable[[EngineStats], float]]] = {
    "num_requests_running": ("Seqs being computed.", lambda s: s.num_running),
    "num_requests_waiting": ("Seqs waiting for pages or a place.", lambda s: s.num_waiting),
    "kv_cache_usage_perc": (
        "Share of KV pages in use; 1 is all.",
        lambda s: s.num_pages_used / s.num_pages if s.num_pages else 0.0,
    ),
    "encoder_cache_bytes": ("Memory of the embeddings of media.", lambda s: s.num_encoder_cache_bytes),
}

_COUNTERS: Mapping[str, tuple[str, Callable[[EngineStats], float]]] = {
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", lambda s: s.num_queried_tokens_total),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", lambda s: s.num_cached_tokens_total),
    "prompt_tokens": ("Prompt tokens read.", lambda s: s.num_prompt_tokens_total),
    "media_encoded": ("Pictures and other media that the tower computed.", lambda s: s.num_media_encoded_total),
    "encoder_cache_hits": ("Media whose embeddings were there when needed.", lambda s: s.num_media_found_total),
    "generation_tokens": ("Tokens generated.", lambda s: s.num_generated_tokens_total),
}

_PREEMPTIONS: Mapping[str, Callable[[EngineStats], float]] = {
    "recompute": lambda s: s.num_preemptions_recompute_total,
    "swap": lambda s: s.num_preemptions_swap_total,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Timings:
    """What the server saw of one ended request, beside its summary."""

    token_gaps_s: Sequence[float] = ()


class Metrics:
    """All figures of one server, in a registry of their own."""

    def __init__(self, infos: Sequence[ModelInfo]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._engines = _EngineFigures(infos)
        self.registry.register(self._engines)
        self._adapters = AdapterMetrics(PREFIX, self._engines.latest)
        self.registry.register(self._adapters)
        longest = max((info.max_model_len for info in infos), default=4096)
        tokens = token_buckets(longest)

        def histogram(name: str, help: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(PREFIX + name, help, ["model_name"], registry=self.registry, buckets=buckets)
            for info in infos:  # so that a model that has not been asked yet shows zeros
                made.labels(info.name)
            return made

        def tally(name: str, help: str, bounds: Sequence[float]) -> Tally:
            made = Tally(PREFIX + name, help, bounds, [info.name for info in infos])
            self.registry.register(made)
            return made

        self._iteration_tokens = tally("iteration_tokens_total", "Tokens computed per step.", tokens)
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens per request.", tokens)
        self._generated = histogram("request_generation_tokens", "Generated tokens per request.", tokens)
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

    def observe_plugins(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take over calls, errors and seconds per plugin."""
        self._engines.plugin_rows = rows

    def rejected(self, model: str, reason: str) -> None:
        """A request was refused before it was accepted."""
        key = (model, reason)
        self._engines.rejections[key] = self._engines.rejections.get(key, 0) + 1

    def finished(self, summary: RequestSummary, timings: Timings) -> None:
        """A request ended."""
        key = (summary.model, summary.finish_reason)
        self._engines.finished[key] = self._engines.finished.get(key, 0) + 1
        self._adapters.finished(summary)
        observations: list[tuple[Histogram, float | None]] = [
            (self._prompt, summary.num_prompt_tokens),
            (self._generated, summary.num_generated_tokens),
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

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


def _plus(first: float | None, second: float | None) -> float | None:
    return None if first is None else first + (second or 0.0)


class _EngineFigures(Collector):
    """Turns the latest statistics into metric families when somebody scrapes."""

    def __init__(self, infos: Sequence[ModelInfo]) -> None:
        self._infos = infos
        self.plugin_rows: Sequence[Mapping[str, Any]] = ()
        self.latest = {info.name: EngineStats(model=info.name, num_pages=info.num_pages) for info in infos}
        self.finished: dict[tuple[str, str], int] = {}
        self.rejections: dict[tuple[str, str], int] = {}
        for info in infos:
            self.finished.update({(info.name, reason): 0 for reason in ("stop", "length", "abort", "error")})
            self.rejections[info.name, "queue_full"] = 0

    def collect(self) -> Iterable[Metric]:
        """One family per metric, one sample per model."""
        for name, (help, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, help, labels=["model_name"])
            for model, stats in self.latest.items():
                gauge.add_metric([model], value(stats))
            yield gauge
        for name, (help, value) in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, help, labels=["model_name"])
            for model, stats in self.latest.items():
                counter.add_metric([model], value(stats))
            yield counter
        yield self._preemptions()
        yield _counts("request_success", "Ended requests.", "finished_reason", self.finished)
        yield _counts("admission_rejections", "Requests refused.", "reason", self.rejections)
        yield self._cache_config()
        yield from self._plugins()

    def _preemptions(self) -> Metric:
        family = CounterMetricFamily(
            PREFIX + "num_preemptions", "Seqs that had to give up their pages.", labels=["model_name", "kind"]
        )
        for model, stats in self.latest.items():
            for kind, value in _PREEMPTIONS.items():
                family.add_metric([model, kind], value(stats))
        return family

    def _cache_config(self) -> Metric:
        labels = ["model_name", "num_gpu_blocks", "block_size", "cache_dtype", "device"]
        family = GaugeMetricFamily(PREFIX + "cache_config_info", "The KV cache; always 1.", labels=labels)
        for info in self._infos:
            family.add_metric([info.name, str(info.num_pages), str(info.page_size), info.dtype, info.device], 1)
        return family

    def _plugins(self) -> Iterable[Metric]:
        for name, help in (("calls", "Calls into a plugin."), ("errors", "Calls that raised."), ("seconds", "Time.")):
            family = CounterMetricFamily(f"{PREFIX}plugin_{name}", help, labels=["plugin"])
            for row in self.plugin_rows:
                family.add_metric([row["plugin"]], row[name])
            yield family
        dropped = CounterMetricFamily(f"{PREFIX}plugin_dropped", "Events that a slow plugin missed.", labels=["plugin"])
        off = GaugeMetricFamily(
            f"{PREFIX}plugin_off", "Functions of a plugin that are switched off.", labels=["plugin"]
        )
        for row in self.plugin_rows:
            dropped.add_metric([row["plugin"]], row.get("dropped", 0))
            off.add_metric([row["plugin"]], len(row.get("off", ())))
        yield from (dropped, off)


def _counts(name: str, help: str, label: str, values: Mapping[tuple[str, str], int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, help, labels=["model_name", label])
    for (model, value), count in list(values.items()):
        family.add_metric([model, value], count)
    return family
