"""The data type that a model's keys and values are stored in."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from quire.errors import ConfigError
from quire_kernels.quantized_pages import BLOCK, STORAGE, unsupported_dim


def choose_kv_dtype(setting: str, dtype: torch.dtype, head_dims: Iterable[int]) -> torch.dtype:
    """Data type of the pools for a value of --kv-cache-dtype; `dtype`, that of the activations, for auto.

    Raises ConfigError if a head dimension cannot be stored.
    """
    dim = unsupported_dim(setting, head_dims)
    if dim is not None:
        raise ConfigError(
            f"--kv-cache-dtype {setting}: {BLOCK} neighboring dimensions share a scale, so head dimensions must be "
            f"multiples of {BLOCK}, but the model has {dim}. Use --kv-cache-dtype int8 or auto."
        )
    return STORAGE.get(setting, dtype)
