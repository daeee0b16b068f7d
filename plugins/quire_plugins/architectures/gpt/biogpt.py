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
    weight_names as names,
)

UNUSED_POSITIONS = 2  # the position table starts with two rows that no position uses

NAMES = names.BART_BLOCKS | WeightsMapper(
    (
        ("biogpt.embed_tokens", "embed"),
        ("biogpt.embed_positions", "positions"),
        ("biogpt.layers", "blocks"),
        ("biogpt.layer_norm", "norm"),
        ("output_projection", "head"),
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
