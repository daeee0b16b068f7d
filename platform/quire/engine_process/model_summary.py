"""The summary of a model that is logged when it is loaded."""

from __future__ import annotations

from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo


def summary(info: ModelInfo, config: ModelConfig) -> str:
    """One line: architecture, size, dtype, device, implementation of the operations, context length, KV cache."""
    return ", ".join(
        filter(
            None,
            [
                info.architecture,
                *info.description,
                f"quantization {config.quantization}" if config.quantization else "",
            ],
        )
    )
