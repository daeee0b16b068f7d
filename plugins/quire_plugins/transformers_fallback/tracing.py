"""Runs a model on torch's meta device, without memory, to see what its layers ask of attention and of experts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quire.errors import CheckpointError
from quire_models.parts.rope_config import Rope
from quire_models.parts.state import KvShape
from quire_plugins.transformers_fallback.interfaces import NAME, Mask, register
from quire_plugins.transformers_fallback.model_class import ModelClass
from quire_plugins.transformers_fallback.rotary import depends_on_length, rotary_by_length, rotary_part
from quire_plugins.transformers_fallback.state.cache import KNOWN_KINDS, cache_argument
from quire_plugins.transformers_fallback.state.tracing import StateUse, TracedCache, entered_modules

ENCODERS = "sdpa"
"""transformers' attention of encoders of pictures, whose tokens are not in pages."""

TOKENS = 7
"""Tokens of the traced step."""


@dataclass(frozen=True)
class AttentionCall:
    """One call of attention in a forward pass. path: of the module that makes it.

    heads, kv_heads, head_dim, value_dim: of queries, keys and values. causal: else tokens attend to their whole row.
    has_sinks: the module passes a logit for each head that takes part in the softmax and has no value. chunk: as in
    `quire_models.Attention`.
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
    chunk: int | None = None

    @property
    def attention_options(self) -> frozenset[str]:
        """What it asks of `paged_attention`, as parts of blocks state it."""
        return frozenset(name for name, used in (("sinks", self.has_sinks), ("chunk", self.chunk)) if used)

    @property
    def kv_shape(self) -> KvShape:
        """What it stores per token, as parts of blocks state it."""
        return KvShape(self.kv_heads, self.head_dim, None if self.value_dim == self.head_dim else self.value_dim)


@dataclass(frozen=True)
class TracedModel:
    """A model as it was traced. model: transformers' model on the meta device. body_path: of the part without the head,
    empty if it is the whole model. takes: which optional arguments its `forward` has. states: what modules keep beside
    keys and values. cache: the argument that takes transformers' cache, if there are some. read_directly: paths of
    linear layers whose weights other modules multiply with themselves. ropes: rotary embeddings that depend on the
    length of a text, by the path of their module.
    """

    model: Any
    body_path: str
    calls: tuple[AttentionCall, ...]
    expert_paths: frozenset[str]
    width: int
    has_lm_head: bool
    takes: frozenset[str]
    states: tuple[StateUse, ...] = ()
    cache: str | None = None
    read_directly: frozenset[str] = frozenset()
    ropes: tuple[tuple[str, Rope], ...] = ()

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
        kind = mask_of(module, mask, options)
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
                chunk=kind.chunk,
            )
        )
        return q.new_empty(1, TOKENS, q.shape[1], v.shape[3])

    def mix_experts(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        self.expert_paths.add(self._paths[id(module)])
        return torch.empty_like(x)


def trace(found: ModelClass) -> TracedModel:
    """Trace a model. Raises CheckpointError with a reason if it cannot be served."""
    model = build_on_meta(found, torch.bfloat16)  # so that tensors are seen that are kept in float32
    _check(found, model)
    body_path = _body_path(model)
    body = model.get_submodule(body_path)
    takes = frozenset(inspect.signature(body.forward).parameters)
    cache = cache_argument(model, found.config, takes)
    if "position_ids" not in takes and cache is None:
        raise CheckpointError("it takes no positions (position_ids), so its prompts cannot be computed in parts")
    tracer = _Tracer({id(module): path for path, module in model.named_modules()})
    ropes = rotary_by_length(model)
    for module in model.modules():
        module.quire_step = tracer
        if depends_on_length(module):
            module.rope_type = "default"  # so that the trace does not read positions
    with entered_modules(model) as entered:
        kept = TracedCache(found.config, entered.now) if cache else None
        width = _run(body, takes, {cache: kept, "use_cache": True} if cache else {})
    states = kept.uses() if kept else ()
    _check_calls(tracer.calls, states, takes)
    return TracedModel(
        model,
        body_path,
        tuple(tracer.calls),
        frozenset(tracer.expert_paths),
        width,
        bool(body_path) and model.get_output_embeddings() is not None and all(call.causal for call in tracer.calls),
        takes,
        states,
        cache if states else None,
        _read_directly(model, states, entered.ever),
        tuple(ropes.items()),
    )


def build_on_meta(found: ModelClass, dtype: torch.dtype) -> Any:
    """The model with its parameters and buffers on the meta device."""
    from transformers.initialization import no_init_weights

    register()
    config = found.config
    try:
        config._attn_implementation = {"": NAME} | dict.fromkeys(config.sub_configs, ENCODERS)
        config.get_text_config(decoder=True)._attn_implementation = NAME
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
    if getattr(found.config, "is_encoder_decoder", False):
        raise CheckpointError("it is an encoder-decoder, whose cross-attention reads the output of an encoder")
    kinds = set(getattr(config, "layer_types", None) or ()) - KNOWN_KINDS
    if kinds:
        raise CheckpointError(f"it has layers of the type {', '.join(map(repr, sorted(kinds)))}")
    for module in model.modules():
        if depends_on_length(module) and rotary_part(module) is None:
            raise CheckpointError(
                f"its rotary embedding ({module.rope_type}) depends on the length of the text, which transformers "
                "computes for a whole batch"
            )


def body_of(model: Any) -> Any:
    """The part of a model without the head."""
    return model.get_submodule(_body_path(model))


def _body_path(model: Any) -> str:
    names = (model.base_model_prefix, "model")
    return next((name for name in names if name and isinstance(getattr(model, name, None), nn.Module)), "")


def _read_directly(model: Any, states: Sequence[StateUse], entered: Set[str]) -> frozenset[str]:
    """Linear layers within modules that keep state, such as the scans of Mamba, that were not called."""
    linear = (path for path, module in model.named_modules() if type(module) is nn.Linear and path not in entered)
    return frozenset(path for path in linear if any(path.startswith(f"{use.path}.") for use in states))


@torch.no_grad()
def _run(body: Any, takes: frozenset[str], cache: Mapping[str, Any]) -> int:
    """Run the body; returns the width of its hidden states. cache: the argument with a cache, if it keeps state."""
    with torch.device("meta"):
        inputs = {
            "input_ids": torch.zeros(1, TOKENS, dtype=torch.int64),
            "position_ids": torch.arange(TOKENS)[None],
        }
        if not cache:  # else masks of padding are not needed, and would be read
            inputs["attention_mask"] = torch.ones(1, TOKENS, dtype=torch.bool)
        given = {name: value for name, value in inputs.items() if name in takes}
        try:
            out = body(**given, **(cache or {"use_cache": False}))
        except CheckpointError:
            raise
        except Exception as error:  # the code of a model may raise anything
            raise CheckpointError(
                f"its layers do not use transformers' interface for attention as a decoder does ({_short(error)})"
            ) from error
    hidden = out[0]
    if hidden.shape[:2] != (1, TOKENS):
        raise CheckpointError(f"it returns no hidden state for each token, but a tensor of shape {list(hidden.shape)}")
    return int(hidden.shape[2])


def _check_calls(calls: Sequence[AttentionCall], states: Sequence[StateUse], takes: frozenset[str]) -> None:
    """Refuse models by what their layers asked for."""
    if not calls and not states:
        raise CheckpointError("its layers do not use transformers' interface for attention")
    if calls and "position_ids" not in takes:
        raise CheckpointError("it takes no positions (position_ids), so its prompts cannot be computed in parts")
    for call in calls:
        if any(f"{call.path}.".startswith(f"{use.path}.") for use in states):
            raise CheckpointError(f"its layer {call.path} both attends and keeps a state")


def mask_of(module: Any, mask: Any, options: dict[str, Any]) -> Mask:
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
