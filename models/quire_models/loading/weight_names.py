"""Tables that map the tensor names of a checkpoint to the parameter names of a `DecoderModel`.

Parameters of a `DecoderModel` (N = index of the block; one with a name in brackets exists only with that part or
field):

    embed.weight                  [vocab, embed width]
    positions.weight              [learned positions, width]     (Positions)
    embed_norm.weight             norm of the first block's input (embed_norm)
    embed_in.weight               [width, embed width]           (embed_width)
    embed_out.weight              [embed width, width]           (embed_width)
    blocks.N.attn_in.weight       norm before attention          (norm_in);  LayerNorm has .bias too
    blocks.N.attn.qkv.weight      [(heads + 2 kv_heads) * head_dim, width]: q, k, v, one after another; (.bias)
    blocks.N.attn.q_norm.weight   and k_norm.weight              (qk_norm)
    blocks.N.attn.o.weight        [width, heads * head_dim]      (.bias)
    blocks.N.attn_out.weight      norm after attention           (norm_out)
    blocks.N.cross_in.weight      norm before cross-attention    (CrossAttentionBlock)
    blocks.N.cross.q.weight       [heads * head_dim, width]      (CrossAttentionBlock); (.bias)
    blocks.N.cross.kv.weight      [2 * kv_heads * head_dim, width]: k, then v (CrossAttentionBlock); (.bias)
    blocks.N.cross.o.weight       [width, heads * head_dim]      (CrossAttentionBlock); (.bias)
    blocks.N.mlp_in.weight        norm before the MLP            (norm_in)
    blocks.N.mlp.gate_up.weight   [2 intermediate_size, width]: gate, then up (GatedMlp); (.bias)
    blocks.N.mlp.up.weight        [intermediate_size, width]     (Mlp);      (.bias)
    blocks.N.mlp.down.weight      [width, intermediate_size]     (.bias)
    blocks.N.mlp.router.weight    [experts, width]               (Moe); (.bias)
    blocks.N.mlp.routing.correction  float32 [experts]           (ExpertRouter, corrected)
    blocks.N.mlp.experts.gate_up  [experts, 2 intermediate_size, width]  (Moe); gate_up_bias [experts, outputs]
    blocks.N.mlp.experts.down     [experts, width, intermediate_size]    (Moe); down_bias [experts, width]
    blocks.N.mlp.shared.…         parameters of what is added for every token (Moe); of a gated one shared.scale.weight
                                  [1, width] and shared.mlp.…     (SigmoidGated)
    blocks.N.mlp_out.weight       norm after the MLP             (norm_out)
    norm.weight                   final norm
    head.weight                   [vocab, embed width]           (absent when the decoder is tied)
    tower.…                       parameters of the tower        (Architecture.tower)
    heads.NAME.I.dense.weight     [outputs, inputs] of layer I of a pooling head (Architecture.pooling); (.bias)

A checkpoint tensor may also fill a slice of a parameter. Slices have names of their own, beside the
whole parameter: `blocks.N.attn.q.weight` (k, v), `blocks.N.cross.k.weight` (v), `blocks.N.mlp.gate.weight` (up), and
`blocks.N.mlp.experts.E.gate.weight` (up, down) of expert E, and `blocks.N.mlp.experts.gate` (up) of all, stacked;
experts without gates have only up in `gate_up`. `quire_models.loading.mapping` maps these names to slices.

So a table only renames: a tensor fused in Quire's order (Phi-3's `qkv_proj`) to the whole parameter, separate
tensors to its slices. Tensors with another layout need a transform. This module imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any

from quire_models.loading.row_orders import BY_HEAD, GATED_QUERIES, RowOrder, as_matrix, as_vector, transpose

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BY_HEAD", "GATED_QUERIES", "RowOrder", "WeightsMapper", "as_matrix", "as_vector", "transpose"]


@dataclass(frozen=True)
class WeightsMapper:
    """How one family names its tensors. `a | b` combines two tables; `b` wins where both rename the same name.

    renames: pairs of dotted runs of whole name segments; ("self_attn.o_proj", "attn.o") changes
    `x.self_attn.o_proj.weight` but not `x.my_self_attn.o_proj.weight`. Names are read from left to right;
    each segment is replaced once, by the longest matching run.
    transforms: pairs of a glob over Quire's names and a function (tensor, decoder) -> tensor, applied to the
    checkpoint's tensor before it is stored. Adapters for transformed tensors are refused, except for `transpose`
    and `RowOrder`.
    ignored: globs over checkpoint names of tensors that are not weights (rotary tables, causal masks).
    zeros: globs over Quire's names of parameters that are zero if the checkpoint omits them (for example one missing
    bias among fused ones).
    """

    renames: tuple[tuple[str, str], ...] = ()
    transforms: tuple[tuple[str, Callable[[Tensor, Any], Tensor]], ...] = ()
    ignored: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()

    def __or__(self, other: WeightsMapper) -> WeightsMapper:
        return WeightsMapper(
            tuple((dict(self.renames) | dict(other.renames)).items()),
            tuple((dict(self.transforms) | dict(other.transforms)).items()),
            tuple(dict.fromkeys(self.ignored + other.ignored)),
            tuple(dict.fromkeys(self.zeros + other.zeros)),
        )

    def rename(self, name: str) -> str:
        """Quire's name of a checkpoint tensor, or of a module (as adapters name them); unknown segments are kept."""
        return self._pattern.sub(self._renamed, name) if self.renames else name

    def ignores(self, name: str) -> bool:
        """Whether to skip the checkpoint tensor `name`."""
        return any(fnmatchcase(name, pattern) for pattern in self.ignored)

    def is_optional(self, ours: str) -> bool:
        """Whether a checkpoint may omit the tensor for Quire's name `ours`, which is then zero."""
        return any(fnmatchcase(ours, pattern) for pattern in self.zeros)

    def transform(self, ours: str) -> Callable[[Tensor, Any], Tensor] | None:
        """The function to apply to a tensor before it is stored under Quire's name `ours`; None: nothing."""
        return next((function for pattern, function in self.transforms if fnmatchcase(ours, pattern)), None)

    def under(self, prefix: str, becomes: str = "") -> WeightsMapper:
        """This table for a model below `prefix` in a larger checkpoint.

        `becomes` is prepended to Quire's names, for example for a text model inside a vision-language model.
        """
        renames = tuple((f"{prefix}.{theirs}" if _rooted(ours) else theirs, ours) for theirs, ours in self.renames)
        roots = tuple((theirs, f"{becomes}.{ours}" if becomes and _rooted(ours) else ours) for theirs, ours in renames)
        transforms = self.transforms if not becomes else tuple((f"{becomes}.{p}", f) for p, f in self.transforms)
        zeros = self.zeros if not becomes else tuple(f"{becomes}.{pattern}" for pattern in self.zeros)
        return WeightsMapper(roots, transforms, self.ignored, zeros)

    def and_under(self, prefix: str) -> WeightsMapper:
        """This table for checkpoints with and without a prefix."""
        return self | self.under(prefix)

    def _renamed(self, match: re.Match[str]) -> str:
        return self._table[match.group()]

    @cached_property
    def _table(self) -> dict[str, str]:
        return dict(self.renames)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted((theirs for theirs, _ in self.renames), key=len, reverse=True)
        return re.compile(rf"(?<![^.])(?:{'|'.join(map(re.escape, longest_first))})(?![^.])")


_ROOTS = frozenset(
    ("embed", "embed_norm", "positions", "types", "embed_in", "embed_out", "blocks", "norm", "head", "heads", "tower")
)


def _rooted(ours: str) -> bool:
    """Whether a renamed run is at the start of Quire's names."""
    return ours.split(".", 1)[0] in _ROOTS


ROTARY_TABLES = ("*.rotary_emb.inv_freq", "*.rotary_emb.cos_cached", "*.rotary_emb.sin_cached")

LLAMA = WeightsMapper(
    (
        ("model.embed_tokens", "embed"),
        ("model.layers", "blocks"),
        ("model.norm", "norm"),
        ("lm_head", "head"),
        ("self_attn", "attn"),
        ("q_proj", "q"),
        ("k_proj", "k"),
        ("v_proj", "v"),
        ("o_proj", "o"),
        ("gate_proj", "gate"),
        ("up_proj", "up"),
        ("down_proj", "down"),
        ("qkv_proj", "qkv"),
        ("gate_up_proj", "gate_up"),
        ("input_layernorm", "attn_in"),
        ("post_attention_layernorm", "mlp_in"),
    ),
    ignored=ROTARY_TABLES,
)
"""Llama and the many families with the same names, with separate or, as in Phi-3, fused matrices."""

LANGUAGE_MODEL = WeightsMapper(
    (
        ("model.language_model.embed_tokens", "embed"),
        ("model.language_model.layers", "blocks"),
        ("model.language_model.norm", "norm"),
        ("lm_head", "head"),
    )
)
"""A language model inside a larger one, named like transformers' modules, which is how adapters name them."""

PRE_AND_POST_NORM = WeightsMapper(
    (
        ("post_attention_layernorm", "attn_out"),
        ("pre_feedforward_layernorm", "mlp_in"),
        ("post_feedforward_layernorm", "mlp_out"),
    )
)
"""Added to LLAMA: norms after attention and MLP, as in Gemma 2 and 3 and OLMo 2."""

MOE = WeightsMapper(
    (
        ("mlp.gate", "mlp.router"),
        ("mlp.gate.e_score_correction_bias", "mlp.routing.correction"),
        ("shared_experts", "shared"),
        ("shared_expert", "shared"),
    )
)
"""Added to LLAMA: experts as in Qwen3-MoE, one tensor each or stacked; shared experts and corrections of the choice as
in DeepSeek V3.
"""

GATED_SHARED = WeightsMapper((("shared_expert", "shared.mlp"), ("shared_expert_gate", "shared.scale")))
"""Added to MOE: a shared expert behind a gate, as in Qwen2-MoE."""

MIXTRAL = WeightsMapper(
    (
        ("block_sparse_moe", "mlp"),
        ("block_sparse_moe.gate", "mlp.router"),
        ("mlp.gate", "mlp.router"),
        ("w1", "gate"),
        ("w2", "down"),
        ("w3", "up"),
    )
)
"""Added to LLAMA: experts as in Mixtral, one tensor each (w1, w2, w3) or stacked."""

GPT2 = WeightsMapper(
    (
        ("transformer.wte", "embed"),
        ("transformer.wpe", "positions"),
        ("transformer.h", "blocks"),
        ("transformer.ln_f", "norm"),
        ("wte", "embed"),
        ("wpe", "positions"),
        ("h", "blocks"),
        ("ln_f", "norm"),
        ("lm_head", "head"),
        ("ln_1", "attn_in"),
        ("ln_2", "mlp_in"),
        ("attn.c_attn", "attn.qkv"),
        ("attn.c_proj", "attn.o"),
        ("mlp.c_fc", "mlp.up"),
        ("mlp.c_proj", "mlp.down"),
    ),
    transforms=(
        ("*.attn.qkv.weight", transpose),
        ("*.attn.o.weight", transpose),
        ("*.mlp.up.weight", transpose),
        ("*.mlp.down.weight", transpose),
    ),
    ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias"),
)
"""GPT-2, with and without the `transformer.` prefix; its matrices are stored transposed."""

BART_BLOCKS = WeightsMapper(
    (
        ("self_attn", "attn"),
        ("q_proj", "q"),
        ("k_proj", "k"),
        ("v_proj", "v"),
        ("out_proj", "o"),
        ("fc1", "mlp.up"),
        ("fc2", "mlp.down"),
        ("self_attn_layer_norm", "attn_in"),
        ("final_layer_norm", "mlp_in"),
    )
)
"""Blocks as in BART, OPT and Whisper, without the names around them."""

OPT = BART_BLOCKS | WeightsMapper(
    (
        ("model.decoder.embed_tokens", "embed"),
        ("model.decoder.embed_positions", "positions"),
        ("model.decoder.project_in", "embed_in"),
        ("model.decoder.project_out", "embed_out"),
        ("model.decoder.layers", "blocks"),
        ("model.decoder.final_layer_norm", "norm"),
        ("decoder.embed_tokens", "embed"),
        ("decoder.embed_positions", "positions"),
        ("decoder.project_in", "embed_in"),
        ("decoder.project_out", "embed_out"),
        ("decoder.layers", "blocks"),
        ("decoder.final_layer_norm", "norm"),
        ("lm_head", "head"),
    )
)
"""OPT, with and without the `model.` prefix. The variant that normalizes after each sum has the same names."""
