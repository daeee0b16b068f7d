"""Checkpoints of bitsandbytes (`quant_method` bitsandbytes), as transformers saves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.plugin import CheckpointFormat, Quantization, hookimpl


def checkpoint(config: Mapping[str, Any]) -> CheckpointFormat:
    """The format that a `quantization_config` describes. Raises CheckpointError for one that cannot be read."""
    from quire_plugins.quantization.formats.bitsandbytes import BitsAndBytes

    return BitsAndBytes.from_config(config)


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """NF4 and FP4 with plain or nested scales, and LLM.int8()."""
    yield Quantization(name="bitsandbytes", checkpoint=checkpoint)
