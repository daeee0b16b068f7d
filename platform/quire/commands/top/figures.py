"""Rates and means between two scrapes: of the server, of each model and of each adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.commands.top.scrape import Scrape

MODEL, ADAPTER = "model_name", "adapter_name"


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """A model: sequences now, tokens per second, fractions from 0 to 1, mean times in seconds, totals.

    None: nothing happened between the scrapes that it could be computed from.
    """

    name: str
    running: float
    waiting: float
    prompt_rate: float
    generation_rate: float
    kv_usage: float
    hit_rate: float | None
    draft_acceptance: float | None
    first_token_s: float | None
    per_token_s: float | None
    ended: float
    failed: float


@dataclass(frozen=True, kw_only=True)
class AdapterFigures:
    """An adapter that had requests: requests now and in all, generated tokens per second; waits: for a slot."""

    model: str
    name: str
    running: float
    waits: bool
    rate: float
    ended: float


@dataclass(frozen=True, kw_only=True)
class ServerFigures:
    """What one frame shows. tiers: adapters of all models by where their weights are. cpu: cores in use.

    cpu, memory_bytes: of the process that answers HTTP.
    """

    models: Sequence[ModelFigures]
    adapters: Sequence[AdapterFigures]
    tiers: dict[str, float]
    rejected: float
    cpu: float | None
    memory_bytes: float

    @property
    def generation_rate(self) -> float:
        return sum(model.generation_rate for model in self.models)

    @property
    def prompt_rate(self) -> float:
        return sum(model.prompt_rate for model in self.models)


class Change:
    """The differences between two scrapes. A counter that fell was reset; its difference is then its value."""

    def __init__(self, before: Scrape, now: Scrape) -> None:
        self._before, self._now = before, now
        self._elapsed_s = now.at_s - before.at_s

    def increase(self, name: str, **labels: str) -> float:
        now, before = self._now.value(name, **labels), self._before.value(name, **labels)
        return now - before if now >= before else now

    def rate(self, name: str, **labels: str) -> float:
        """Increase per second; 0 between two equal scrapes."""
        return self.increase(name, **labels) / self._elapsed_s if self._elapsed_s > 0 else 0.0

    def mean(self, name: str, **labels: str) -> float | None:
        """The mean of the values that a histogram got."""
        return _ratio(self.increase(f"{name}_sum", **labels), self.increase(f"{name}_count", **labels))


def figures(before: Scrape, now: Scrape) -> ServerFigures:
    change = Change(before, now)
    names = now.labels("num_requests_running", MODEL)
    tiers: dict[str, float] = {}
    for sample in now["adapters"]:
        tier = sample.labels.get("tier", "")
        tiers[tier] = tiers.get(tier, 0.0) + sample.value
    return ServerFigures(
        models=[_model(now, change, name) for name in names],
        adapters=_adapters(now, change),
        tiers=tiers,
        rejected=now.value("admission_rejections_total"),
        cpu=change.rate("process_cpu_seconds_total") if now.at_s > before.at_s else None,
        memory_bytes=now.value("process_resident_memory_bytes"),
    )


def _model(now: Scrape, change: Change, name: str) -> ModelFigures:
    of = {MODEL: name}
    return ModelFigures(
        name=name,
        running=now.value("num_requests_running", **of),
        waiting=now.value("num_requests_waiting", **of),
        prompt_rate=change.rate("prompt_tokens_total", **of),
        generation_rate=change.rate("generation_tokens_total", **of),
        kv_usage=now.mean("kv_cache_usage_perc", **of),
        hit_rate=_ratio(now.value("prefix_cache_hits_total", **of), now.value("prefix_cache_queries_total", **of)),
        draft_acceptance=_ratio(
            now.value("spec_decode_num_accepted_tokens_total", **of),
            now.value("spec_decode_num_draft_tokens_total", **of),
        ),
        first_token_s=change.mean("time_to_first_token_seconds", **of),
        per_token_s=change.mean("inter_token_latency_seconds", **of),
        ended=now.value("request_success_total", **of),
        failed=now.value("request_success_total", **of, finished_reason="error"),
    )


def _adapters(now: Scrape, change: Change) -> list[AdapterFigures]:
    waiting = {
        (sample.labels.get(MODEL, ""), name)
        for sample in now["lora_requests_info"]
        for name in sample.labels.get("waiting_lora_adapters", "").split(",")
    }
    pairs = [
        (sample.labels[MODEL], sample.labels[ADAPTER])
        for metric in ("adapter_requests_total", "adapter_requests_running")
        for sample in now[metric]
        if {MODEL, ADAPTER} <= sample.labels.keys()
    ]
    return [_adapter(now, change, *pair, waits=pair in waiting) for pair in dict.fromkeys(pairs)]


def _adapter(now: Scrape, change: Change, model: str, name: str, waits: bool) -> AdapterFigures:
    of = {MODEL: model, ADAPTER: name}
    return AdapterFigures(
        model=model,
        name=name,
        running=now.value("adapter_requests_running", **of),
        waits=waits,
        rate=change.rate("adapter_generation_tokens_total", **of),
        ended=now.value("adapter_requests_total", **of),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
