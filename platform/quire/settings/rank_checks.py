"""Checks of the settings that divide a model among ranks."""

from __future__ import annotations

from typing import Any

from quire.errors import ConfigError
from quire.settings.setting import check_positive

MAX_RANKS = 64
"""Largest number of ranks of a model."""


def check_ranks(config: Any) -> None:
    """Raise ConfigError for settings of a `ModelConfig` that no ranks can have."""
    check_positive(config, "tensor_parallel_size")
    size = config.tensor_parallel_size
    if size > MAX_RANKS:
        raise ConfigError(f"--tensor-parallel-size may be at most {MAX_RANKS}; got {size}.")
    if config.distributed_executor_backend == "uni" and size > 1:
        raise ConfigError(
            f"--distributed-executor-backend uni has one rank, but --tensor-parallel-size is {size}; use mp."
        )
