"""Checkpoints of FP8 (`quant_method` fp8), as DeepSeek and Qwen publish them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.plugin import CheckpointFormat, Quantization, hookimpl


def checkpoint(config: Mapping[str, Any]) -> CheckpointFormat:
    """The format that a `quantization_config` describes. Raises CheckpointError for one that cannot be read."""
    from quire_plugins.quantization.formats.fp8 import Fp8

    return Fp8.of(config)


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """FP8 (E4M3) with a scale for each tensor, channel or block."""
    yield Quantization(name="fp8", checkpoint=checkpoint)
