"""Builds a model of transformers with its tables, and without memory for its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from threading import Lock
from typing import Any

import torch
from torch import nn

from quire_plugins.transformers_fallback.interfaces import register
from quire_plugins.transformers_fallback.model_class import ModelClass

_LOCK = Lock()


def build_with_buffers(found: ModelClass, dtype: torch.dtype, device: torch.device) -> Any:
    """The model: parameters on the meta device, buffers that it computes, such as rotary frequencies, on `device`."""
    from transformers.initialization import no_init_weights

    register()
    config = deepcopy(found.config)  # a model may change its config
    with _LOCK, _parameters_on_meta(), no_init_weights(), torch.device(device):
        model = found.cls._from_config(config, dtype=dtype).eval()
    model.tie_weights()
    return model


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move every parameter to the meta device as soon as a module gets it."""
    register_parameter = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register_parameter(module, name, parameter)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register_parameter  # type: ignore[method-assign]
