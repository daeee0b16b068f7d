"""Checkpoints of the compressed-tensors library (`quant_method` compressed-tensors), as llm-compressor writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.plugin import CheckpointFormat, Quantization, hookimpl


def checkpoint(config: Mapping[str, Any]) -> CheckpointFormat:
    """The format that a `quantization_config` describes. Raises CheckpointError for one that cannot be read."""
    from quire_plugins.quantization.formats.compressed_tensors import CompressedTensors

    return CompressedTensors.from_config(config)


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """Integers of 2 to 8 bits, packed or not, and FP8."""
    yield Quantization(name="compressed-tensors", checkpoint=checkpoint)
