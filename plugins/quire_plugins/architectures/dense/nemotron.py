"""Nemotron and Minitron (dense): layer norms with a weight stored minus one, squared ReLU, partly rotary; Jais 2."""

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
    Rope,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
)


def decoder(c: Any) -> Decoder:
    return _decoder(c, LayerNorm(c.norm_eps, offset=1.0))


def jais2(c: Any) -> Decoder:
    return _decoder(c, LayerNorm(c.layer_norm_eps))


def _decoder(c: Any, norm: LayerNorm) -> Decoder:
    head_dim = configs.head_dim(c)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=configs.kv_heads(c),
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim),
        qkv_bias=c.attention_bias,
        out_bias=c.attention_bias,
    )
    block = Block(attention, Mlp(c.intermediate_size, configs.act(c.hidden_act), bias=c.mlp_bias), norm)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language models, and the classes of Nemotron without a language head."""
    yield Architecture("NemotronForCausalLM", decoder, names.LLAMA)
    yield Architecture("Jais2ForCausalLM", jais2, names.LLAMA)
    yield from headless("Nemotron", decoder, names.LLAMA)
