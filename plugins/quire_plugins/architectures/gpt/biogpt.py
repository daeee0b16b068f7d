"""BioGPT: learned positions, layer norms before each branch, scaled embeddings."""

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
    WeightsMapper,
    config_fields as configs,
    hookimpl,
)

UNUSED_POSITIONS = 2  # the position table starts with two rows that no position uses

NAMES = WeightsMapper(
    (
        ("biogpt.embed_tokens", "embed"),
        ("biogpt.embed_positions", "positions"),
        ("biogpt.layers", "blocks"),
        ("biogpt.layer_norm", "norm"),
        ("output_projection", "head"),
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


def decoder(c: Any) -> Decoder:
    norm, heads = LayerNorm(), c.num_attention_heads  # whatever layer_norm_eps says
    attention = Attention(heads, heads, c.hidden_size // heads, qkv_bias=True, out_bias=True)
    block = Block(attention, Mlp(c.intermediate_size, configs.act(c.hidden_act)), norm)
    return Decoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=(block,) * c.num_hidden_layers,
        norm=norm,
        tied=c.tie_word_embeddings,
        embed_scale=c.hidden_size**0.5 if c.scale_embedding else 1.0,
        positions=Positions(c.max_position_embeddings, offset=UNUSED_POSITIONS),
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`BioGptForCausalLM`, the only architecture."""
    yield Architecture("BioGptForCausalLM", decoder, NAMES)
