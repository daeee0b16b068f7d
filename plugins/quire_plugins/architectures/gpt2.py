"""GPT-2: learned positions, layer norms, MLPs without gates, biases everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    LayerNorm,
    Mlp,
    Positions,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)


def decoder(c: Any) -> Decoder:
    norm = LayerNorm(c.layer_norm_epsilon)
    mlp = Mlp(c.n_inner or 4 * c.n_embd, configs.act(c.activation_function))
    return Decoder(
        vocab=c.vocab_size,
        width=c.n_embd,
        blocks=tuple(Block(_attention(c, layer), mlp, norm) for layer in range(c.n_layer)),
        norm=norm,
        tied=c.tie_word_embeddings,
        positions=Positions(c.n_positions),
    )


def _attention(c: Any, layer: int) -> Attention:
    head_dim = c.n_embd // c.n_head
    scale = head_dim**-0.5 if c.scale_attn_weights else 1.0
    if c.scale_attn_by_inverse_layer_idx:
        scale /= layer + 1
    return Attention(c.n_head, c.n_head, head_dim, qkv_bias=True, out_bias=True, scale=scale)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`GPT2LMHeadModel`, the only architecture."""
    yield Architecture(name="GPT2LMHeadModel", decoder=decoder, names=names.GPT2)
