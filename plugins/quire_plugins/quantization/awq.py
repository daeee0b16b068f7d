"""Checkpoints of AWQ (`quant_method` awq), as AutoAWQ and llm-awq write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.plugin import CheckpointFormat, Quantization, hookimpl


def checkpoint(config: Mapping[str, Any]) -> CheckpointFormat:
    """The format that a `quantization_config` describes. Raises CheckpointError for one that cannot be read."""
    from quire_plugins.quantization.formats.awq import Awq

    return Awq.from_config(config)


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """Matrices of 4 bits in the layouts gemm and gemv."""
    yield Quantization(name="awq", checkpoint=checkpoint)
