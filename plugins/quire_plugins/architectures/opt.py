"""OPT: learned positions; layer norms before each branch, or after each residual sum in the 350M model."""

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
    PostNormBlock,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)

UNUSED_POSITIONS = 2  # OPT's position table starts with two rows that no position uses


def decoder(c: Any) -> Decoder:
    norm = LayerNorm(affine=c.layer_norm_elementwise_affine)
    heads = c.num_attention_heads
    attention = Attention(heads, heads, c.hidden_size // heads, qkv_bias=c.enable_bias, out_bias=c.enable_bias)
    mlp = Mlp(c.ffn_dim, configs.act(c.activation_function), bias=c.enable_bias)
    block = (Block if c.do_layer_norm_before else PostNormBlock)(attention, mlp, norm)
    keeps_norm = c.do_layer_norm_before and not configs.optional(c, "_remove_final_layer_norm", False)
    return Decoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=(block,) * c.num_hidden_layers,
        norm=norm if keeps_norm else None,
        tied=c.tie_word_embeddings,
        positions=Positions(c.max_position_embeddings, offset=UNUSED_POSITIONS),
        embed_width=None if c.word_embed_proj_dim == c.hidden_size else c.word_embed_proj_dim,
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`OPTForCausalLM`, the only architecture."""
    yield Architecture(name="OPTForCausalLM", decoder=decoder, names=names.OPT)
