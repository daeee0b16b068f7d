"""The metrics of tiers of KV pages."""

from prometheus_client import CollectorRegistry, generate_latest

from quire.server.metrics.engine_metrics import EngineMetrics
from quire.types import EngineStats, KvTiersStats, KvTierStats


def test_tokens_count_by_model_and_pages_by_tier() -> None:
    metrics = EngineMetrics("vllm:", [])
    disk = KvTierStats(name="disk", num_bytes=4000, num_pages=2, num_hits_total=7, num_evictions_total=3)
    kept = KvTiersStats(num_queried_tokens_total=160, num_hit_tokens_total=112, num_dropped_total=1, tiers=(disk,))
    metrics.latest["m", 0] = EngineStats(model="m", kv_tiers=kept)
    metrics.latest["without", 0] = EngineStats(model="without")
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    found = [line for line in lines if line.startswith(("vllm:external", "vllm:kv_tier"))]
    for name, value in (("queries", 160.0), ("hits", 112.0)):
        assert f'vllm:external_prefix_cache_{name}_total{{engine="0",model_name="m"}} {value}' in found
    assert 'vllm:kv_tier_dropped_pages_total{engine="0",model_name="m"} 1.0' in found
    for name, value in (("bytes", 4000.0), ("pages", 2.0), ("hits_total", 7.0), ("evictions_total", 3.0)):
        assert f'vllm:kv_tier_{name}{{engine="0",model_name="m",tier="disk"}} {value}' in found
    assert not any("without" in line for line in found)
