"""Latent attention as the configs of these families describe it, and the order of its matrices in their checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.plugin import LatentAttention, RMSNorm, Rope, RowOrder, config_fields as configs, weight_names as names

if TYPE_CHECKING:
    from torch import Tensor


def attention(c: Any, interleaved: bool) -> LatentAttention:
    """Describes configs with the field names of DeepSeek V2."""
    settings = configs.rope_settings(c)
    share = settings.get("partial_rotary_factor", 1.0)
    rope = Rope.from_config(c, round(c.qk_rope_head_dim / share))
    return LatentAttention(
        heads=c.num_attention_heads,
        latent_dim=c.kv_lora_rank,
        plain_dim=c.qk_nope_head_dim,
        rope_dim=c.qk_rope_head_dim,
        value_dim=c.v_head_dim,
        norm=RMSNorm(),
        q_rank=c.q_lora_rank,
        rope=replace(rope, dim=c.qk_rope_head_dim, interleaved=interleaved),
        bias=configs.optional(c, "attention_bias", False),
        scale=(c.qk_nope_head_dim + c.qk_rope_head_dim) ** -0.5 * _temperature(settings) ** 2,
    )


def _temperature(settings: dict[str, Any]) -> float:
    """Factor of queries, and of keys, that scaled rotary embeddings ask for (mscale_all_dim)."""
    kind, mscale = settings.get("rope_type", settings.get("type", "default")), settings.get("mscale_all_dim", 0)
    if kind in ("default", None) or not mscale or settings["factor"] <= 1:
        return 1.0
    return 0.1 * float(mscale) * math.log(settings["factor"]) + 1.0


def _by_head(first: str, second: str, decoder: Any) -> Tensor:
    """Rows [heads, first and second] of a checkpoint in Quire's order: first of all heads, then second of all heads."""
    import torch

    part = next(block.attn for block in decoder.blocks if isinstance(block.attn, LatentAttention))
    at, both = getattr(part, first), getattr(part, first) + getattr(part, second)
    theirs = torch.arange(part.heads * both).view(part.heads, both)
    return torch.cat((theirs[:, :at].flatten(), theirs[:, at:].flatten()))


QUERIES = RowOrder(partial(_by_head, "plain_dim", "rope_dim"))
EXPANSION = RowOrder(partial(_by_head, "plain_dim", "value_dim"))

NAMES = names.WeightsMapper(
    (
        ("q_a_proj", "q_a"),
        ("q_a_layernorm", "q_a_norm"),
        ("q_b_proj", "q_b"),
        ("kv_a_proj_with_mqa", "kv_a"),
        ("kv_a_layernorm", "kv_a_norm"),
        ("kv_b_proj", "kv_b"),
    ),
    transforms=(
        ("*.attn.q.weight", QUERIES),
        ("*.attn.q_b.weight", QUERIES),
        ("*.attn.kv_b.weight", EXPANSION),
    ),
)
"""Added to LLAMA."""
