"""Rotary embeddings that depend on the length of a text, for each text of a step by itself.

transformers takes the longest position of a batch for all texts of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire.errors import CheckpointError
from quire_models.parts.rope_config import Rope
from quire_plugins.transformers_fallback.same_code import same_code

if TYPE_CHECKING:
    from quire_models.step.rope import RotaryAngles
    from quire_plugins.transformers_fallback.step import ModelStep


class StepRotary(nn.Module):
    """Rotary angles of Quire with the signature of transformers' modules."""

    def __init__(self, angles: RotaryAngles, step: ModelStep) -> None:
        super().__init__()
        self._angles, self._step = angles, step

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """(cos, sin) of the tokens of the step, each [1, tokens, dim], in the data type of x."""
        cos, sin = (torch.cat((each, each), -1)[None] for each in self._angles.for_step(self._step.current))
        return cos.to(x.dtype), sin.to(x.dtype)


def depends_on_length(module: Any) -> bool:
    """Whether a module of transformers computes such an embedding."""
    kind = getattr(module, "rope_type", None)
    kinds = kind.values() if isinstance(kind, Mapping) else (kind,)  # models may have one for each type of layer
    return any(each in ("dynamic", "longrope") for each in kinds)


def rotary_part(module: Any) -> Rope | None:
    """The embedding that a module of transformers computes for all layers; None if Quire does not know it."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    if not same_code(type(module).forward, LlamaRotaryEmbedding.forward):
        return None
    config = module.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    try:
        return Rope.from_config(config, head_dim)
    except (CheckpointError, AttributeError, KeyError, TypeError):
        return None


def rotary_by_length(model: Any) -> dict[str, Rope]:
    """The embeddings of a model that depend on the length, by the path of their module."""
    found = {path: rotary_part(module) for path, module in model.named_modules() if depends_on_length(module)}
    return {path: rope for path, rope in found.items() if rope is not None}
