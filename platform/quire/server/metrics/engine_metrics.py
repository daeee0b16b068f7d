"""Prometheus metrics of engines, made from the latest statistics of each model at every scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.server.metrics.kv_tier_metrics import KV_COUNTERS, TIER_COUNTERS, TIER_GAUGES
from quire.server.service.client_protocol import SleepProtocol
from quire.types import EngineStats, ModelInfo, SpeculationStats, StateStats

ENGINE = "engine"
"""The label with the number of the engine process."""

_Value: TypeAlias = Callable[[EngineStats], float]

_GAUGES: Mapping[str, tuple[str, _Value]] = {
    "num_requests_running": ("Sequences being computed.", lambda s: s.num_running),
    "num_requests_waiting": ("Sequences waiting to be scheduled.", lambda s: s.num_waiting),
    "kv_cache_usage_perc": (
        "Fraction of KV cache pages in use, from 0 to 1.",
        lambda s: s.num_pages_used / s.num_pages if s.num_pages else 0.0,
    ),
    "encoder_cache_bytes": ("Bytes in use by the cache of media embeddings.", lambda s: s.num_encoder_cache_bytes),
}

_COUNTERS: Mapping[str, tuple[str, _Value]] = {
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", lambda s: s.num_queried_tokens_total),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", lambda s: s.num_cached_tokens_total),
    "prompt_tokens": ("Prompt tokens of admitted requests.", lambda s: s.num_prompt_tokens_total),
    "prompt_tokens_cached": ("Prompt tokens taken from the prefix cache.", lambda s: s.num_cached_tokens_total),
    "media_encoded": ("Images and other media that the encoder computed.", lambda s: s.num_media_encoded_total),
    "encoder_cache_hits": ("Media whose embeddings were found in the cache.", lambda s: s.num_media_found_total),
    "mm_cache_queries": (
        "Media whose embeddings were needed.",
        lambda s: s.num_media_encoded_total + s.num_media_found_total,
    ),
    "mm_cache_hits": ("Media whose embeddings were found in the cache.", lambda s: s.num_media_found_total),
    "generation_tokens": ("Tokens generated.", lambda s: s.num_generated_tokens_total),
    "corrupted_requests": (
        "Requests ended by logits that were not finite.",
        lambda s: s.num_corrupted_total,
    ),
}

_STATE_GAUGES: Mapping[str, tuple[str, Callable[[StateStats], float]]] = {
    "state_slots": ("Slots for the state of sequences and for checkpoints.", lambda s: s.num_slots),
    "state_slots_used": ("State slots of running sequences.", lambda s: s.num_slots_used),
    "state_checkpoints": ("Checkpoints of state in the prefix cache.", lambda s: s.num_checkpoints),
}
_STATE_COUNTERS: Mapping[str, tuple[str, Callable[[StateStats], float]]] = {
    "state_checkpoints_taken": ("Checkpoints of state that were taken.", lambda s: s.num_checkpoints_total),
    "state_checkpoint_hits": ("Sequences that began with a checkpoint of state.", lambda s: s.num_hits_total),
}
"""Of models that keep state; for others there is no sample."""

_DRAFT_COUNTERS: Mapping[str, tuple[str, Callable[[SpeculationStats], float]]] = {
    "spec_decode_num_drafts": ("Steps of sequences that verified drafted tokens.", lambda s: s.num_drafts_total),
    "spec_decode_num_draft_tokens": ("Tokens drafted.", lambda s: s.num_draft_tokens_total),
    "spec_decode_num_accepted_tokens": ("Drafted tokens that were accepted.", lambda s: s.num_accepted_tokens_total),
}
"""Of models with a drafter, and of others once a request had a prediction; for others there is no sample."""

_PREEMPTIONS: Mapping[str, _Value] = {
    "recompute": lambda s: s.num_preemptions_recompute_total,
    "swap": lambda s: s.num_preemptions_swap_total,
}

_WAITING: Mapping[str, _Value] = {
    "capacity": lambda s: max(0, s.num_waiting - s.num_deferred),
    "deferred": lambda s: min(s.num_waiting, s.num_deferred),
}

_SOURCES: Mapping[str, _Value] = {
    "local_compute": lambda s: s.num_queried_tokens_total - s.num_cached_tokens_total,
    "local_cache_hit": lambda s: s.num_cached_tokens_total,
}

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""Values of the label of `engine_sleep_state`, by the level of the sleep; the names are vLLM's."""

SleepOf: TypeAlias = Callable[[str], SleepProtocol | None]
"""How a model sleeps; None: it is awake."""

_Family: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]
_BY_LABEL: Mapping[str, tuple[_Family, str, str, Mapping[str, _Value]]] = {
    "num_preemptions": (CounterMetricFamily, "Preemptions of running sequences.", "kind", _PREEMPTIONS),
    "num_requests_waiting_by_reason": (
        GaugeMetricFamily,
        "Sequences waiting for capacity, or deferred until a grammar or adapter is ready.",
        "reason",
        _WAITING,
    ),
    "prompt_tokens_by_source": (
        CounterMetricFamily,
        "Prompt tokens of admitted requests, by whether they were computed or found in the prefix cache.",
        "source",
        _SOURCES,
    ),
}


class EngineMetrics(Collector):
    """Makes metric families from the latest statistics and the server's own counts."""

    def __init__(self, prefix: str, infos: Sequence[ModelInfo], sleep_of: SleepOf = lambda name: None) -> None:
        self._prefix, self._sleep_of = prefix, sleep_of
        self._infos: dict[str, ModelInfo] = {}
        self.plugin_rows: Sequence[Mapping[str, Any]] = ()
        self.latest: dict[tuple[str, int], EngineStats] = {}
        """By model and engine process."""
        self.finished: dict[tuple[str, str], int] = {}
        self.rejections: dict[tuple[str, str], int] = {}
        self.parsed: dict[tuple[str, str, str, str], int] = {}
        for info in infos:
            self.add_model(info)

    def add_model(self, info: ModelInfo) -> None:
        """Begin the series of a model, at zero."""
        self._infos[info.name] = info
        self.latest[info.name, 0] = EngineStats(model=info.name, num_pages=info.num_pages)
        self.finished.update({(info.name, reason): 0 for reason in ("stop", "length", "abort", "error")})
        self.rejections[info.name, "queue_full"] = 0

    def remove_model(self, name: str) -> None:
        """End the series of a model."""
        self._infos.pop(name, None)
        tables: tuple[dict[Any, Any], ...] = (self.latest, self.finished, self.rejections, self.parsed)
        for table in tables:
            for key in [key for key in list(table) if key[0] == name]:
                del table[key]

    def has(self, name: str) -> bool:
        """Whether a model has series."""
        return name in self._infos

    def collect(self) -> Iterable[Metric]:
        """Yields one family per metric, with one sample per model, or per model and engine process."""
        latest = dict(self.latest)  # models may come and go in another thread
        for family, metrics in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, (help, value) in metrics.items():
                yield self._family(family, name, help, [ENGINE], {key: value(s) for key, s in latest.items()})
        states = {key: s.state for key, s in latest.items() if s.state is not None}
        for family, of_state in ((GaugeMetricFamily, _STATE_GAUGES), (CounterMetricFamily, _STATE_COUNTERS)):
            for name, (help, number) in of_state.items():
                yield self._family(family, name, help, [ENGINE], {key: number(s) for key, s in states.items()})
        yield from self._drafts()
        yield from self._tiers(latest)
        yield self._sleep_states(latest)
        for name, (family, help, label, values) in _BY_LABEL.items():
            rows = {(*key, kind): value(s) for key, s in latest.items() for kind, value in values.items()}
            yield self._family(family, name, help, [ENGINE, label], rows)
        counter = CounterMetricFamily
        yield self._family(
            counter, "request_success", "Finished requests, by finish reason.", ["finished_reason"], self.finished
        )
        yield self._family(
            counter, "admission_rejections", "Rejected requests, by reason.", ["reason"], self.rejections
        )
        help = "Chat responses that were searched for tool calls."
        labels = ["mode", "outcome", "request_type"]
        yield self._family(counter, "tool_call_parser_invocations", help, labels, self.parsed)
        yield self._cache_config()
        yield from self._plugins()

    def _drafts(self) -> Iterable[Metric]:
        drafted = {key: s.speculation for key, s in dict(self.latest).items() if s.speculation is not None}
        for name, (help, number) in _DRAFT_COUNTERS.items():
            yield self._family(
                CounterMetricFamily, name, help, [ENGINE], {key: number(s) for key, s in drafted.items()}
            )
        yield self._family(
            CounterMetricFamily,
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens that were accepted, by their position in the draft.",
            [ENGINE, "position"],
            {(*key, str(i)): n for key, s in drafted.items() for i, n in enumerate(s.num_accepted_per_position)},
        )

    def _sleep_states(self, latest: Iterable[tuple[str, int]]) -> Metric:
        rows: dict[tuple[str | int, ...], float] = {}
        for key in latest:
            sleep = self._sleep_of(key[0])
            level = 0 if sleep is None else sleep.level
            rows |= {(*key, state): float(number == level) for number, state in enumerate(SLEEP_STATES)}
        help = "Whether a model is awake, or sleeps with its weights in host memory or without; 1 for what holds."
        return self._family(GaugeMetricFamily, "engine_sleep_state", help, [ENGINE, "sleep_state"], rows)

    def _tiers(self, latest: Mapping[tuple[str, int], EngineStats]) -> Iterable[Metric]:
        kept = {key: s.kv_tiers for key, s in latest.items() if s.kv_tiers is not None}
        for name, (help, of_model) in KV_COUNTERS.items():
            yield self._family(CounterMetricFamily, name, help, [ENGINE], {key: of_model(s) for key, s in kept.items()})
        tiers = {(*key, tier.name): tier for key, s in kept.items() for tier in s.tiers}
        for family, metrics in ((GaugeMetricFamily, TIER_GAUGES), (CounterMetricFamily, TIER_COUNTERS)):
            for name, (help, value) in metrics.items():
                rows = {key: value(tier) for key, tier in tiers.items()}
                yield self._family(family, name, help, [ENGINE, "tier"], rows)

    def _family(self, family: _Family, name: str, help: str, labels: list[str], rows: Mapping[Any, float]) -> Metric:
        metric = family(self._prefix + name, help, labels=["model_name", *labels])
        for key, value in list(rows.items()):
            metric.add_metric([str(part) for part in key], value)
        return metric

    def _cache_config(self) -> Metric:
        labels = ["model_name", "num_gpu_blocks", "block_size", "cache_dtype", "device"]
        family = GaugeMetricFamily(
            self._prefix + "cache_config_info",
            "The KV cache's settings, as labels; always 1.",
            labels=labels,
        )
        for info in list(self._infos.values()):
            family.add_metric([info.name, str(info.num_pages), str(info.page_size), info.dtype, info.device], 1)
        return family

    def _plugins(self) -> Iterable[Metric]:
        for name, help in (
            ("calls", "Calls into a plugin."),
            ("errors", "Calls that raised."),
            ("seconds", "Time in calls."),
        ):
            family = CounterMetricFamily(f"{self._prefix}plugin_{name}", help, labels=["plugin"])
            for row in self.plugin_rows:
                family.add_metric([row["plugin"]], row[name])
            yield family
        prefix = self._prefix
        dropped = CounterMetricFamily(f"{prefix}plugin_dropped", "Events that a slow plugin missed.", labels=["plugin"])
        off = GaugeMetricFamily(
            f"{prefix}plugin_off", "Functions of a plugin that were switched off after errors.", labels=["plugin"]
        )
        for row in self.plugin_rows:
            dropped.add_metric([row["plugin"]], row.get("dropped", 0))
            off.add_metric([row["plugin"]], len(row.get("off", ())))
        yield from (dropped, off)
