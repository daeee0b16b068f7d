"""Logs throughput, queue and cache usage of each model every ten seconds while it has work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from quire.types import EngineStats

log = logging.getLogger("quire.server")

INTERVAL_S = 10.0


class ThroughputLog:
    """Compares the statistics of a model with those of the last interval. clock: returns seconds."""

    def __init__(self, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._before: dict[tuple[str, int], tuple[float, EngineStats]] = {}

    def forget(self, model: str) -> None:
        """Drop the statistics of a model that was unloaded."""
        self._before = {key: before for key, before in self._before.items() if key[0] != model}

    def observe(self, stats: EngineStats) -> None:
        """Compare with earlier statistics, and log when the interval has passed."""
        now = self._clock()
        key = stats.model, stats.engine
        since, before = self._before.setdefault(key, (now, stats))
        elapsed_s = now - since
        if elapsed_s < self._interval_s:
            return
        self._before[key] = now, stats
        restarted = stats.num_steps_total < before.num_steps_total
        if restarted or not (stats.num_running or stats.num_waiting or stats.num_steps_total > before.num_steps_total):
            return
        is_one = max(engine for _, engine in self._before) == 0
        name = stats.model if is_one else f"{stats.model} (engine {stats.engine})"
        log.info("%s: %s", name, _line(before, stats, elapsed_s))


def _line(before: EngineStats, now: EngineStats, elapsed_s: float) -> str:
    prompt = (now.num_prompt_tokens_total - before.num_prompt_tokens_total) / elapsed_s
    output = (now.num_generated_tokens_total - before.num_generated_tokens_total) / elapsed_s
    queried = now.num_queried_tokens_total - before.num_queried_tokens_total
    cached = now.num_cached_tokens_total - before.num_cached_tokens_total
    parts = [
        f"prompt throughput {prompt:.1f} tokens/s",
        f"generation throughput {output:.1f} tokens/s",
        f"{now.num_running} requests running",
        f"{now.num_waiting} waiting",
        f"KV cache usage {100 * now.num_pages_used / max(now.num_pages, 1):.1f} %",
    ]
    if queried:
        parts.append(f"prefix cache hit rate {100 * cached / queried:.1f} %")
    if drafted := _drafted(now) - _drafted(before):
        accepted = _accepted(now) - _accepted(before)
        parts.append(f"draft acceptance rate {100 * accepted / drafted:.1f} %")
    return ", ".join(parts)


def _drafted(stats: EngineStats) -> int:
    return stats.speculation.num_draft_tokens_total if stats.speculation else 0


def _accepted(stats: EngineStats) -> int:
    return stats.speculation.num_accepted_tokens_total if stats.speculation else 0
