"""Checkpoints of GPTQ (`quant_method` gptq), as AutoGPTQ, GPTQModel and AutoRound write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.plugin import CheckpointFormat, Quantization, hookimpl


def checkpoint(config: Mapping[str, Any]) -> CheckpointFormat:
    """The format that a `quantization_config` describes. Raises CheckpointError for one that cannot be read."""
    from quire_plugins.quantization.formats.gptq import Gptq

    return Gptq.from_config(config)


@hookimpl
def quire_quantizations() -> Iterable[Quantization]:
    """Matrices of 2, 3, 4 or 8 bits, with groups in the order of the inputs or by `g_idx`."""
    yield Quantization(name="gptq", checkpoint=checkpoint)
