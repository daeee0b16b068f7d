"""Checkpoints of MXFP4 (`quant_method` mxfp4), the experts of GPT-OSS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.plugin import CheckpointFormat, Quantization, hookimpl


def checkpoint(config: Mapping[str, Any]) -> CheckpointFormat:
    """The format that a `quantization_config` describes. Raises CheckpointError for one that cannot be read."""
    from quire_plugins.quantization.formats.mxfp4 import Mxfp4

    return Mxfp4.from_config(config)


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """Stacked experts of FP4 (E2M1) with an exponent for each 32 values."""
    yield Quantization(name="mxfp4", checkpoint=checkpoint)
