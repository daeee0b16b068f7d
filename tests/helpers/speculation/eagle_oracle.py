"""EAGLE in plain torch, over whole sequences at once and without a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from head_rig import Tensors
from torch import Tensor
from torch.nn import functional

from quire_testing.tiny import SIZES

HEADS, KV_HEADS, DIM = SIZES["num_attention_heads"], SIZES["num_key_value_heads"], SIZES["head_dim"]


def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor) -> Tensor:
    """x [tokens, heads, DIM], token i at position i."""
    frequencies = 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    angles = torch.arange(len(x))[:, None, None] * frequencies
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def attention(x: Tensor, t: Tensors, prefix: str) -> Tensor:
    q, k, v = (
        functional.linear(x, t[f"{prefix}.self_attn.{name}_proj.weight"]).unflatten(-1, (-1, DIM)) for name in "qkv"
    )
    q, k, v = rotated(q), *(each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (rotated(k), v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * DIM**-0.5
    scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
    seen = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
    return functional.linear(seen, t[f"{prefix}.self_attn.o_proj.weight"])


def mlp(x: Tensor, t: Tensors, prefix: str) -> Tensor:
    gate, up = (functional.linear(x, t[f"{prefix}.mlp.{name}_proj.weight"]) for name in ("gate", "up"))
    return functional.linear(functional.silu(gate) * up, t[f"{prefix}.mlp.down_proj.weight"])


def eagle_features(t: Tensors, embeddings: Tensor, features: Tensor) -> Tensor:
    """EAGLE 1 and 2: [pairs, width] -> the next features."""
    x = functional.linear(torch.cat([embeddings, features], -1), t["fc.weight"], t.get("fc.bias"))
    x = x + attention(x, t, "layers.0")
    return x + mlp(norm(x, t["layers.0.post_attention_layernorm.weight"]), t, "layers.0")


def eagle3_features(t: Tensors, embeddings: Tensor, features: Tensor) -> Tensor:
    normed = [
        norm(embeddings, t["midlayer.input_layernorm.weight"]),
        norm(features, t["midlayer.hidden_norm.weight"]),
    ]
    x = features + attention(torch.cat(normed, -1), t, "midlayer")
    return x + mlp(norm(x, t["midlayer.post_attention_layernorm.weight"]), t, "midlayer")


def drafts(
    next_features: Callable[[Tensor, Tensor], Tensor],
    logits: Callable[[Tensor], Tensor],
    table: Tensor,
    token_ids: Sequence[int],
    features: Tensor,
    count: int,
) -> list[int]:
    """Greedy drafts after `token_ids`, of whose tokens but the last the features are given. logits: of features."""
    tokens, found = list(token_ids), list[int]()
    while len(found) < count:
        last = next_features(table[torch.tensor(tokens[1:])], features)[-1]
        found.append(int(logits(last).argmax()))
        tokens.append(found[-1])
        features = torch.cat([features, last[None]])
    return found
