"""BLOOM: ALiBi, a norm of the embeddings, queries, keys and values fused by head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    CheckpointError,
    Decoder,
    LayerNorm,
    Mlp,
    WeightsMapper,
    headless,
    hookimpl,
)
from quire_plugins.architectures.gpt.gpt_neox import FUSED
from quire_plugins.architectures.positions.alibi import bloom_slopes

NAMES = FUSED | WeightsMapper(
    (
        ("transformer.word_embeddings", "embed"),
        ("transformer.word_embeddings_layernorm", "embed_norm"),
        ("transformer.h", "blocks"),
        ("transformer.ln_f", "norm"),
        ("word_embeddings", "embed"),
        ("word_embeddings_layernorm", "embed_norm"),
        ("h", "blocks"),
        ("ln_f", "norm"),
        ("lm_head", "head"),
        ("self_attention", "attn"),
    )
)


def decoder(c: Any) -> Decoder:
    if c.apply_residual_connection_post_layernorm:
        raise CheckpointError("config.json has apply_residual_connection_post_layernorm, which is not supported.")
    width, heads, norm = c.hidden_size, c.n_head, LayerNorm(c.layer_norm_epsilon)
    attention = Attention(heads, heads, width // heads, qkv_bias=True, out_bias=True, alibi=bloom_slopes(heads))
    block = Block(attention, Mlp(4 * width), norm)
    return Decoder(c.vocab_size, width, (block,) * c.n_layer, norm, tied=c.tie_word_embeddings, embed_norm=norm)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, and the classes without a language head."""
    yield Architecture("BloomForCausalLM", decoder, NAMES)
    yield from headless("Bloom", decoder, NAMES)
