"""The settings of the cache of packed weights."""

from __future__ import annotations

from dataclasses import dataclass

from quire.settings.setting import setting


@dataclass(frozen=True, kw_only=True)
class WeightsCacheConfig:
    """Base of `ModelConfig`: where a model's weights are kept as the kernels read them."""

    weights_cache: str | None = setting(
        "Folder for files of weights in the layout of the CPU's kernels, from which a model is loaded again without "
        "reading and converting its checkpoint (default: off; see the section Loading in docs/serving.md)."
    )
    weights_cache_bytes: int = setting(
        "Maximum total size in bytes of the files in --weights-cache; the least recently used ones are deleted.",
        64 << 30,
    )
