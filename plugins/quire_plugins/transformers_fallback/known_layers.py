"""Attention and MLPs of transformers whose code Quire knows: each runs as one recorded program.

transformers repeats the code of Llama's modules in most families. Where the compiled code is the same, and the
activation and the rotary embedding are among Quire's, the module that Quire's part builds computes the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from quire.errors import CheckpointError
from quire_models.loading.config_fields import act
from quire_models.modules.attention import SelfAttention
from quire_models.modules.mlp import GatedFeedForward
from quire_models.parts.decoder import Attention, GatedMlp
from quire_models.parts.rope_config import Rope
from quire_plugins.transformers_fallback.same_code import same_code
from quire_plugins.transformers_fallback.step import ModelStep
from quire_plugins.transformers_fallback.tracing import AttentionCall, TracedModel

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder


class StepAttention(SelfAttention):
    """Self-attention with the signature of transformers' modules."""

    def __init__(self, width: int, part: Attention, builder: ModuleBuilder, step: ModelStep) -> None:
        super().__init__(width, part, builder)
        self._step, self._width = step, width
        self._run: Callable[[Tensor, Any], Tensor] = self._bind_and_run

    def process_weights(self) -> None:
        """Record the program again at the next step."""
        super().process_weights()
        self._run = self._bind_and_run

    def _bind_and_run(self, x: Tensor, forward: Any) -> Tensor:
        self._run = self._ops.fused_blocks((partial(SelfAttention.forward, self),), self._width)
        return self._run(x, forward)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        """hidden_states [1, tokens, width] -> ([1, tokens, width], no weights)."""
        forward = self._step.enter(self.layer, kwargs.get("attention_mask"))
        return self._run(hidden_states[0], forward).unsqueeze(0), None


class StepMlp(GatedFeedForward):
    """A gated MLP with the signature of transformers' modules."""

    def __init__(self, width: int, part: GatedMlp, builder: ModuleBuilder, step: ModelStep) -> None:
        super().__init__(width, part, builder)
        self._step, self._width = step, width
        self._run: Callable[[Tensor, Any], Tensor] = self._bind_and_run

    def process_weights(self) -> None:
        """Record the program again at the next step."""
        self._run = self._bind_and_run

    def _bind_and_run(self, x: Tensor, forward: Any) -> Tensor:
        self._run = self._ops.fused_blocks((partial(GatedFeedForward.forward, self),), self._width)
        return self._run(x, forward)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """x [..., width] -> the same shape. The program is for all tokens of a step; other rows get no adapters."""
        rows, forward = x.reshape(-1, self._width), self._step.current
        if len(rows) == len(forward.tokens):
            return self._run(rows, forward).view(x.shape)
        adaptable = self.gate_up.delta is not None or self.down.delta is not None
        context = _Context(self._step.adapters_for(len(rows)) if adaptable else None)
        return GatedFeedForward.forward(self, rows, context).view(x.shape)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Context:
    """What projections ask of a step."""

    adapters: Any


def attention_parts(traced: TracedModel) -> dict[str, tuple[int, Attention]]:
    """The modules of attention whose code Quire knows, by path: their index in the KV cache, and their parts."""
    paths = [call.path for call in traced.calls]
    found = {}
    for index, call in enumerate(traced.calls):
        module = traced.model.get_submodule(call.path)
        rope = _rope(traced, module) if paths.count(call.path) == 1 and _is_plain(call, module) else None
        if rope is not None:
            found[call.path] = (
                index,
                Attention(
                    call.heads,
                    call.kv_heads,
                    call.head_dim,
                    rope=rope,
                    qkv_bias=module.q_proj.bias is not None,
                    out_bias=module.o_proj.bias is not None,
                    window=call.window,
                    softcap=call.softcap,
                    scale=call.scale,
                ),
            )
    return found


def mlp_parts(model: Any) -> dict[str, GatedMlp]:
    """The MLPs whose code Quire knows, by path."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    found = {}
    for path, module in model.named_modules():
        if not hasattr(module, "gate_proj") or not same_code(type(module).forward, LlamaMLP.forward):
            continue
        linears = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        name = _act(module)
        if name is None or not _alike(linears):
            continue
        found[path] = GatedMlp(module.gate_proj.out_features, name, module.gate_proj.bias is not None)
    return found


def _is_plain(call: AttentionCall, module: Any) -> bool:
    """Whether a module of attention does what `quire_models.Attention` describes."""
    linears = [getattr(module, name, None) for name in ("q_proj", "k_proj", "v_proj")]
    usual = call.causal and not call.attention_options and call.value_dim == call.head_dim
    if not usual or not _alike(linears) or type(getattr(module, "o_proj", None)) is not nn.Linear:
        return False
    if not any(same_code(type(module).forward, known) for known in _known_attention()):
        return False
    functions = sys.modules[type(module).__module__]
    return all(same_code(getattr(functions, name, _none), function) for name, function in _rotary_functions().items())


def _none() -> None:
    """In the place of a function that a module of transformers lacks."""


@cache
def _known_attention() -> tuple[Any, ...]:
    from transformers.models.llama.modeling_llama import LlamaAttention
    from transformers.models.mistral.modeling_mistral import MistralAttention
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

    return LlamaAttention.forward, MistralAttention.forward, Qwen2Attention.forward


@cache
def _rotary_functions() -> dict[str, Any]:
    from transformers.models.llama import modeling_llama as llama

    return {"apply_rotary_pos_emb": llama.apply_rotary_pos_emb, "rotate_half": llama.rotate_half}


def _rope(traced: TracedModel, module: Any) -> Rope | None:
    """The rotary embedding of a model that has one for all layers; None if Quire does not know it."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    body = traced.model.get_submodule(traced.body_path)
    rotary = getattr(body, "rotary_emb", None)
    if rotary is None or not same_code(type(rotary).forward, LlamaRotaryEmbedding.forward):
        return None
    kinds = type(rotary).compute_default_rope_parameters, LlamaRotaryEmbedding.compute_default_rope_parameters
    if rotary.rope_type not in ("default", "linear", "llama3", "yarn", "dynamic", "longrope") or not same_code(*kinds):
        return None
    try:
        return Rope.from_config(rotary.config, module.head_dim)
    except (CheckpointError, AttributeError, KeyError, TypeError):
        return None


def _alike(linears: list[Any]) -> bool:
    """Whether all are linear layers, with or without biases."""
    return all(type(each) is nn.Linear for each in linears) and len({each.bias is None for each in linears}) == 1


def _act(module: Any) -> str | None:
    from transformers.activations import ACT2FN

    config = getattr(module, "config", None)
    name = str(getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None))
    try:
        return act(name) if type(module.act_fn) is type(ACT2FN[name]) else None
    except (CheckpointError, KeyError):
        return None
