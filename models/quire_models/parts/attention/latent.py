"""Latent attention (MLA: DeepSeek-V2, arXiv 2405.04434): a frozen description that imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts.attention.query_scaling import QueryScaling
from quire_models.parts.state import KvShape

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.decoder import Part
    from quire_models.parts.rope_config import Rope


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Self-attention whose keys and values are computed from one compressed row per token, which the pages hold.

    heads: query heads (num_attention_heads). latent_dim: width of the compressed keys and values (kv_lora_rank).
    plain_dim, rope_dim: dimensions of a query and key without and with rotary embedding (qk_nope_head_dim,
    qk_rope_head_dim). value_dim: of a value (v_head_dim). q_rank: width of compressed queries (q_lora_rank), None: they
    are not compressed. rope: of rope_dim, None: no rotation. norm: of the compressed rows. bias: of the matrices that
    compress and of the output. scale: factor of the scores, (plain_dim + rope_dim) ** -0.5 by default. q_factor,
    latent_factor: of the compressed queries and rows, after their norm (LongCat). query_scaling: factor of queries by
    position (Mistral 4).
    """

    heads: int
    latent_dim: int
    plain_dim: int
    rope_dim: int
    value_dim: int
    norm: Part
    q_rank: int | None = None
    rope: Rope | None = None
    bias: bool = False
    scale: float | None = None
    q_factor: float = 1.0
    latent_factor: float = 1.0
    query_scaling: QueryScaling | None = None

    @property
    def kv_shape(self) -> KvShape:
        """One row per token, of which values are a part."""
        return KvShape(1, self.latent_dim + self.rope_dim, 0)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.attention.latent import LatentSelfAttention

        return LatentSelfAttention(width, self, builder)
