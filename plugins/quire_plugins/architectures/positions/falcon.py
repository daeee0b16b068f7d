"""Falcon: rotary positions or ALiBi (Falcon-RW), blocks of two layouts, keys and values of one head, some or all."""

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
    ParallelBlock,
    Rope,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
)
from quire_plugins.architectures.gpt.gpt_neox import FUSED
from quire_plugins.architectures.positions.alibi import bloom_slopes

NAMES = WeightsMapper(
    (
        *FUSED.renames,
        ("transformer.word_embeddings", "embed"),
        ("transformer.h", "blocks"),
        ("transformer.ln_f", "norm"),
        ("lm_head", "head"),
        ("self_attention", "attn"),
        ("ln_attn", "attn_in"),
        ("ln_mlp", "mlp_in"),
    ),
    ignored=("*.rotary_emb.inv_freq",),
)


def decoder(c: Any) -> Decoder:
    heads, head_dim = c.num_attention_heads, c.hidden_size // c.num_attention_heads
    several = c.new_decoder_architecture or not c.multi_query
    slopes = tuple(slope * head_dim**-0.5 for slope in bloom_slopes(heads))  # scores are scaled after their sum
    attention = Attention(
        heads,
        (c.num_kv_heads or heads) if several else 1,
        head_dim,
        rope=None if c.alibi else Rope.from_config(c, head_dim),
        qkv_bias=c.bias,
        out_bias=c.bias,
        alibi=slopes if c.alibi else (),
    )
    norm = LayerNorm(c.layer_norm_epsilon)
    mlp = Mlp(c.ffn_hidden_size or 4 * c.hidden_size, configs.act(c.activation), bias=c.bias)
    block: Block | ParallelBlock = Block(attention, mlp, norm)
    if c.new_decoder_architecture or c.parallel_attn:
        two = c.new_decoder_architecture and c.num_ln_in_parallel_attn in (None, 2)
        block = ParallelBlock(attention, mlp, norm, norms=2 if two else 1)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm, tied=c.tie_word_embeddings)


def weights(c: Any) -> WeightsMapper:
    """With one head of keys and values, the fused matrix has Quire's order."""
    by_head = c.new_decoder_architecture or not c.multi_query
    return NAMES | WeightsMapper(transforms=FUSED.transforms if by_head else ())


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, of 1B, 7B, 40B and 180B."""
    yield Architecture("FalconForCausalLM", decoder, weights)
