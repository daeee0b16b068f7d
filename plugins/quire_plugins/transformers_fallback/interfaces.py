"""What transformers calls in place of its own attention, masks and experts, for models of this plugin.

transformers keeps these functions in tables of its own, by the name that a config chooses. The functions find the model
through the module that calls them: its attribute `quire_step`, a `Step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

from torch import Tensor

NAME = "quire"
"""The name of the functions in transformers' tables."""

MaskKind = Literal["causal", "bidirectional"]


@dataclass(frozen=True)
class Mask:
    """Stands for an attention mask, which is never built. window: as in `quire_models.Attention`, for causal masks; for
    bidirectional ones a token attends to the window - 1 tokens on each side. chunk: as in `quire_models.Attention`.
    other: what a mask does that cannot be computed, None if there is nothing.
    """

    kind: MaskKind
    window: int | None = None
    other: str | None = None
    chunk: int | None = None


class Step(Protocol):
    """What a model's layers share: the current step, or the trace of a model."""

    def attend(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float | None, options: dict[str, Any]
    ) -> Tensor:
        """q [1, heads, tokens, head_dim]; k, v [1, kv_heads, tokens, …] -> [1, tokens, heads, value_dim]."""
        ...

    def mix_experts(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """x [tokens, width]; chosen, weights [tokens, top_k] -> [tokens, width]."""
        ...


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' signature of an attention function."""
    return module.quire_step.attend(module, query, key, value, attention_mask, scaling, options), None


def describe_mask(mask_function: Any = None, allow_is_causal_skip: bool = True, **options: Any) -> Mask:
    """transformers' signature of a function that makes masks."""
    window: int | None = options.get("local_size")
    kinds = _kinds(mask_function)
    if kinds == {"causal_mask_function"}:
        return Mask("causal")
    if kinds == {"sliding_window_overlay", "causal_mask_function"}:
        return Mask("causal", window)
    if kinds == {"chunked_overlay", "causal_mask_function"}:
        return Mask("causal", chunk=window)
    if kinds == {"bidirectional_mask_function"}:
        return Mask("bidirectional")
    if kinds == {"sliding_window_bidirectional_overlay", "bidirectional_mask_function"} and window is not None:
        return Mask("bidirectional", window + 1)
    return Mask("causal", None, " and ".join(sorted(kinds)))


def mix_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """transformers' signature of a function that computes experts."""
    mixed: Tensor = module.quire_step.mix_experts(module, hidden_states, top_k_index, top_k_weights)
    return mixed


@cache
def register() -> None:
    """Add the functions to transformers' tables."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, describe_mask)
    ALL_EXPERTS_FUNCTIONS.register(NAME, mix_experts)


def _kinds(function: Any) -> set[str]:
    """Names of the conditions that a mask function combines."""
    name = function.__qualname__.split(".")[0]
    if name != "and_masks":
        return {name}
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    inner = [each for cell in cells if isinstance(cell, tuple | list) for each in cell]
    return set().union(*map(_kinds, inner)) if inner else {name}
