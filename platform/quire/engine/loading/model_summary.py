"""The summary of a model that is logged when it is loaded."""

from __future__ import annotations

from collections import Counter

from quire.engine.loading.load import LoadedModel
from quire.engine.memory.kv_budget import page_bytes
from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo


def summary(loaded: LoadedModel, info: ModelInfo, config: ModelConfig) -> str:
    """One line: architecture, size, dtype, device, implementation of the operations, context length, KV cache."""
    chosen = Counter(choice.name for choice in loaded.ops.report)
    parts = [
        f"{info.architecture}, {_count(info.num_parameters)} parameters",
        f"{info.dtype} on {info.device} with {chosen.most_common(1)[0][0]} operations",
        f"context {info.max_model_len} tokens",
        _cache(loaded, info, config),
        f"quantization {config.quantization}" if config.quantization else "",
    ]
    return ", ".join(filter(None, parts))


def _cache(loaded: LoadedModel, info: ModelInfo, config: ModelConfig) -> str:
    if loaded.decoder.non_causal:
        return "no KV cache"
    num_bytes, tokens = info.num_pages * page_bytes(config, loaded), info.num_pages * info.page_size
    return f"KV cache {_size(num_bytes)} for {tokens} tokens"


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def _size(num_bytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1024:.1f} KiB"
