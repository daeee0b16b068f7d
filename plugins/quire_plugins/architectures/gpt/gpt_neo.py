"""GPT-Neo: GPT-2 with separate projections, unscaled scores, and a window in every other layer."""

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

NAMES = WeightsMapper(
    (
        ("transformer.wte", "embed"),
        ("transformer.wpe", "positions"),
        ("transformer.h", "blocks"),
        ("transformer.ln_f", "norm"),
        ("lm_head", "head"),
        ("ln_1", "attn_in"),
        ("ln_2", "mlp_in"),
        ("attn.attention", "attn"),
        ("q_proj", "q"),
        ("k_proj", "k"),
        ("v_proj", "v"),
        ("out_proj", "o"),
        ("mlp.c_fc", "mlp.up"),
        ("mlp.c_proj", "mlp.down"),
    ),
    ignored=("*.attn.attention.bias", "*.attn.attention.masked_bias"),
)


def decoder(c: Any) -> Decoder:
    norm, heads = LayerNorm(c.layer_norm_epsilon), c.num_heads
    mlp = Mlp(c.intermediate_size or 4 * c.hidden_size, configs.act(c.activation_function))

    def block(kind: str) -> Block:
        window = c.window_size if kind == "local" else None
        return Block(
            Attention(heads, heads, c.hidden_size // heads, out_bias=True, window=window, scale=1.0), mlp, norm
        )

    return Decoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=tuple(map(block, c.attention_layers)),
        norm=norm,
        tied=c.tie_word_embeddings,
        positions=Positions(c.max_position_embeddings),
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`GPTNeoForCausalLM`, the only architecture."""
    yield Architecture("GPTNeoForCausalLM", decoder, NAMES)
