"""How many replicas there should be: as many as the requests need, or as the use of KV caches needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

TARGET_KV_USAGE = 0.8
"""Mean share of the KV caches in use for which there are as many replicas as needed."""


class QueueAndKvPolicy:
    """A policy of Ray Serve. It applies its own limits, factors and delays to what this returns.

    Requests: those that run or wait, over `target_ongoing_requests`. KV: the mean use of the caches, over
    target_kv_usage.
    """

    def __init__(self, target_kv_usage: float = TARGET_KV_USAGE) -> None:
        if not 0 < target_kv_usage <= 1:
            raise ValueError(f"target_kv_usage must be above 0, at most 1; got {target_kv_usage}.")
        self._target_kv_usage = target_kv_usage

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """The number of replicas, not rounded, and no state."""
        current = context.current_num_replicas
        if not current:
            return context.target_num_replicas, {}
        by_requests = context.total_num_requests / context.config.get_target_ongoing_requests()
        used = (context.aggregated_metrics or {}).get("kv_cache_usage", {})
        by_kv = sum(used.values()) / self._target_kv_usage
        return max(by_requests, by_kv), {}
