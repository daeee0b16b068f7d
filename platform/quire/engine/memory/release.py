"""Frees the weights of a model that is closed."""

from __future__ import annotations

import torch
from torch import nn


@torch.inference_mode()
def release_weights(module: nn.Module) -> None:
    """Free the weights of a model, which cannot be used afterwards.

    Adapter runtimes refer to the weights and to themselves. The garbage collector would free them late, or never, since
    `gc.freeze` excludes what was loaded at the start.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.new_empty(0)
    for part in list(module.modules()):
        vars(part).clear()  # packed weights
