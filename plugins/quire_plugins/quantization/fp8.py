"""FP8: checkpoints as DeepSeek and Qwen publish them (`quant_method` fp8), and `--quantization fp8`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.plugin import CheckpointFormat, Quantization, hookimpl
from quire_plugins.quantization import fp8_at_load


def checkpoint(config: Mapping[str, Any]) -> CheckpointFormat:
    """The format that a `quantization_config` describes. Raises CheckpointError for one that cannot be read."""
    from quire_plugins.quantization.formats.fp8 import Fp8

    return Fp8.from_config(config)


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """FP8 (E4M3) with a scale for each tensor, channel or block; when a model is loaded, for each output channel."""
    yield Quantization(name="fp8", linear=fp8_at_load.linear, checkpoint=checkpoint)
