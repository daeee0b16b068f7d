"""Grouped-query attention and its options: a frozen description that imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_kernels.attention import HeadGroups, Stripes
from quire_models.parts.attention.position_bias import PositionBias
from quire_models.parts.attention.query_scaling import QueryScaling
from quire_models.parts.rope_config import Rope
from quire_models.parts.state import KvShape

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.decoder import Part


@dataclass(frozen=True)
class Attention:
    """Grouped-query self-attention over the seq's pages.

    heads, kv_heads: query and key-value heads (num_attention_heads, num_key_value_heads). rope: rotary embedding,
    None for models with learned positions. qkv_bias, out_bias: biases of the projections. qk_norm: norm of queries
    and keys, with one weight for all heads, or over all heads at once if qk_norm_wide (OLMo 2); `PerHead` has a
    weight for each head. window: a token attends to itself and the window - 1 tokens before it (sliding_window).
    softcap: scores are squashed to ± softcap (attn_logit_softcapping). scale: factor of the scores, head_dim ** -0.5
    by default. An attention part of a plugin may have `needs_ops`, as `Architecture` has.

    value_dim: width of a head's value, None = head_dim. gate: what a head returns is multiplied by the sigmoid of a
    gate, which the query projection gives after all queries (Qwen3-Next; `names.GATED_QUERIES`). sinks: a learned score
    for each head, without a value (GPT-OSS). alibi: for each head, what a score loses with each position of distance
    (arXiv 2108.12409). chunk: a token attends to the positions of its own chunk of so many (Llama 4:
    attention_chunk_size). norm_after_rope: `qk_norm` applies to rotated queries and keys. v_norm: norm of each value.
    v_from_k: values are the projected keys, before `qk_norm`; needs v_norm. clip: bound of projected queries, keys and
    values (clip_qkv). query_scaling: factor of queries by position. kv_from: index of an earlier block whose keys and
    values it reads instead of its own (shared KV). out_width: width of the output, None = that of the input.
    position_bias: what is added to scores by distance (T5), in place of alibi. stripes: blocks of positions that a
    token attends to (Phi-3-small). groups: of the query heads, where a rank has parts of some.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Part | None = None
    qk_norm_wide: bool = False
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    value_dim: int | None = None
    gate: bool = False
    sinks: bool = False
    alibi: tuple[float, ...] = ()
    chunk: int | None = None
    norm_after_rope: bool = False
    v_norm: Part | None = None
    v_from_k: bool = False
    clip: float | None = None
    query_scaling: QueryScaling | None = None
    kv_from: int | None = None
    out_width: int | None = None
    position_bias: PositionBias | None = None
    stripes: Stripes | None = None
    groups: HeadGroups | None = None

    def __post_init__(self) -> None:
        if self.alibi and self.position_bias is not None:
            raise ValueError("a block adds biases of relative positions either by alibi or by position_bias")
        if self.v_from_k and self.v_norm is None:
            raise ValueError("v_from_k needs v_norm: queries and keys are rotated in place")

    @property
    def value_width(self) -> int:
        """Width of a head's value."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def kv_shape(self) -> KvShape:
        if self.kv_from is not None:
            return KvShape(0, 0)
        other = self.value_dim not in (None, self.head_dim)
        return KvShape(self.kv_heads, self.head_dim, self.value_dim if other else None)

    @property
    def attention_options(self) -> frozenset[str]:
        """The options that it asks of `paged_attention`."""
        used = {"sinks": self.sinks, "slopes": self.alibi, "chunk": self.chunk}
        used |= {"biases": self.position_bias, "stripes": self.stripes, "groups": self.groups}
        return frozenset(name for name, value in used.items() if value)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.attention import SelfAttention

        return SelfAttention(width, self, builder)
