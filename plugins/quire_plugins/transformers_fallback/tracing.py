"""Runs a model on torch's meta device, without memory, to see what its layers ask of attention and of experts."""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointError
from quire_plugins.transformers_fallback.interfaces import NAME, Mask, register
from quire_plugins.transformers_fallback.model_class import ModelClass

TOKENS = 7
"""Tokens of the traced step."""


@dataclass(frozen=True)
class AttentionCall:
    """One call of attention in a forward pass. path: of the module that makes it.

    heads, kv_heads, head_dim, value_dim: of queries, keys and values. causal: else tokens attend to their whole row.
    has_sinks: the module passes a logit for each head that takes part in the softmax and has no value.
    """

    path: str
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    has_sinks: bool


@dataclass(frozen=True)
class TracedModel:
    """A model as it was traced. model: transformers' model on the meta device. body_path: of the part without the head,
    empty if it is the whole model. takes: which optional arguments its `forward` has.
    """

    model: Any
    body_path: str
    calls: tuple[AttentionCall, ...]
    expert_paths: frozenset[str]
    width: int
    has_lm_head: bool
    takes: frozenset[str]

    @property
    def causal(self) -> bool:
        return all(call.causal for call in self.calls)


class _Tracer:
    """The `Step` of a traced model. paths: of the modules, by id."""

    def __init__(self, paths: dict[int, str]) -> None:
        self._paths = paths
        self.calls: list[AttentionCall] = []
        self.expert_paths: set[str] = set()

    def attend(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float | None, options: dict[str, Any]
    ) -> Tensor:
        kind = _mask_of(module, mask, options)
        path = self._paths[id(module)]
        if kind.other:
            raise CheckpointError(f"its layer {path} masks attention in a way that cannot be computed ({kind.other})")
        if q.shape[2] != TOKENS or k.shape[2] != TOKENS:
            raise CheckpointError(f"its layer {path} attends to other tokens than those of the text")
        self.calls.append(
            AttentionCall(
                path=path,
                heads=q.shape[1],
                kv_heads=k.shape[1],
                head_dim=q.shape[3],
                value_dim=v.shape[3],
                scale=q.shape[3] ** -0.5 if scale is None else float(scale),
                causal=kind.kind == "causal",
                window=kind.window,
                softcap=options.get("softcap"),
                has_sinks=options.get("s_aux") is not None,
            )
        )
        return q.new_empty(1, TOKENS, q.shape[1], v.shape[3])

    def mix_experts(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        self.expert_paths.add(self._paths[id(module)])
        return torch.empty_like(x)


def trace(found: ModelClass) -> TracedModel:
    """TracedModel a model. Raises CheckpointError with a reason if it cannot be served."""
    model = build_on_meta(found, torch.float32)
    _check(found, model)
    body_path = _body_path(model)
    body = model.get_submodule(body_path)
    takes = frozenset(inspect.signature(body.forward).parameters)
    if "position_ids" not in takes:
        raise CheckpointError("it takes no positions (position_ids), so its prompts cannot be computed in parts")
    tracer = _Tracer({id(module): path for path, module in model.named_modules()})
    for module in model.modules():
        module.quire_step = tracer
    width = _run(body, takes, tracer)
    return TracedModel(
        model,
        body_path,
        tuple(tracer.calls),
        frozenset(tracer.expert_paths),
        width,
        bool(body_path) and model.get_output_embeddings() is not None and all(call.causal for call in tracer.calls),
        takes,
    )


def build_on_meta(found: ModelClass, dtype: torch.dtype) -> Any:
    """The model with its parameters and buffers on the meta device."""
    from transformers.initialization import no_init_weights

    register()
    config = found.config
    try:
        config._attn_implementation = NAME
        with suppress(Exception):  # models without experts may not have the setting
            config._experts_implementation = NAME
        with torch.device("meta"), no_init_weights():
            model = found.cls._from_config(config, dtype=dtype).eval()
        model.tie_weights()
    except Exception as error:  # transformers and code of checkpoints may raise anything
        raise CheckpointError(f"its modules cannot be built ({_short(error)})") from error
    return model


def _check(found: ModelClass, model: Any) -> None:
    """Refuse models by what they say of themselves."""
    config = found.config.get_text_config(decoder=True)
    if getattr(model, "_is_stateful", False):
        raise CheckpointError("its layers keep a state for each sequence beside keys and values")
    if getattr(found.config, "is_encoder_decoder", False):
        raise CheckpointError("it is an encoder-decoder, whose cross-attention reads the output of an encoder")
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention", "attention"}
    if kinds:
        raise CheckpointError(f"it has layers of the type {', '.join(map(repr, sorted(kinds)))}")
    for module in model.modules():
        if getattr(module, "rope_type", None) in ("dynamic", "longrope"):
            raise CheckpointError(
                f"its rotary embedding ({module.rope_type}) depends on the length of the text, which transformers "
                "computes for a whole batch"
            )


def _body_path(model: Any) -> str:
    path: str = model.base_model_prefix
    return path if path and hasattr(model, path) else ""


@torch.no_grad()
def _run(body: Any, takes: frozenset[str], tracer: _Tracer) -> int:
    """Run the body; returns the width of its hidden states."""
    with torch.device("meta"):
        inputs = {
            "input_ids": torch.zeros(1, TOKENS, dtype=torch.int64),
            "position_ids": torch.arange(TOKENS)[None],
            "attention_mask": torch.ones(1, TOKENS, dtype=torch.bool),
            "use_cache": False,
        }
        try:
            out = body(**{name: value for name, value in inputs.items() if name in takes or name == "use_cache"})
        except CheckpointError:
            raise
        except Exception as error:  # the code of a model may raise anything
            raise CheckpointError(
                f"its layers do not use transformers' interface for attention as a decoder does ({_short(error)})"
            ) from error
    if not tracer.calls:
        raise CheckpointError("its layers do not use transformers' interface for attention")
    hidden = out[0]
    if hidden.shape[:2] != (1, TOKENS):
        raise CheckpointError(f"it returns no hidden state for each token, but a tensor of shape {list(hidden.shape)}")
    return int(hidden.shape[2])


def _mask_of(module: Any, mask: Any, options: dict[str, Any]) -> Mask:
    """The mask of a call; if the model gives none, what the module says of itself."""
    if isinstance(mask, Mask):
        return mask
    if mask is not None:
        return Mask("causal", None, f"a mask of {type(mask).__name__}")
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    window = options.get("sliding_window")
    return Mask("causal", window) if causal else Mask("bidirectional", None if window is None else window + 1)


def _short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
