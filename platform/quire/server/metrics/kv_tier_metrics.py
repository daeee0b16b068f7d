"""The metrics of tiers of KV pages, for models that have some."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quire.types import KvTiersStats, KvTierStats

KV_COUNTERS: Mapping[str, tuple[str, Callable[[KvTiersStats], float]]] = {
    "external_prefix_cache_queries": (
        "Prompt tokens looked up in the tiers beside the device's memory.",
        lambda s: s.num_queried_tokens_total,
    ),
    "external_prefix_cache_hits": ("Prompt tokens taken from these tiers.", lambda s: s.num_hit_tokens_total),
    "kv_tier_dropped_pages": (
        "Pages that were not written, because the queue was full.",
        lambda s: s.num_dropped_total,
    ),
}

_OfTier = Callable[[KvTierStats], float]

TIER_GAUGES: Mapping[str, tuple[str, _OfTier]] = {
    "kv_tier_bytes": ("Bytes of the pages in a tier.", lambda s: s.num_bytes),
    "kv_tier_pages": ("Pages in a tier.", lambda s: s.num_pages),
}

TIER_COUNTERS: Mapping[str, tuple[str, _OfTier]] = {
    "kv_tier_hits": ("Pages read from a tier.", lambda s: s.num_hits_total),
    "kv_tier_misses": ("Reads that ended at a page that the tier had lost.", lambda s: s.num_misses_total),
    "kv_tier_corrupted_pages": ("Damaged or expired pages.", lambda s: s.num_corrupted_total),
    "kv_tier_errors": ("Calls of a store that failed or took too long.", lambda s: s.num_errors_total),
    "kv_tier_evictions": ("Pages that a tier deleted to make room.", lambda s: s.num_evictions_total),
    "kv_tier_read_bytes": ("Bytes read from a tier.", lambda s: s.num_read_bytes_total),
    "kv_tier_written_bytes": ("Bytes written to a tier.", lambda s: s.num_written_bytes_total),
}
