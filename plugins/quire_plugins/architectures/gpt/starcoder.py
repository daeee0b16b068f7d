"""StarCoder (GPT-BigCode): GPT-2 whose queries share one key-value head; StarCoder 2: layer norms and rotary."""

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
    Rope,
    WeightsMapper,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
)

STARCODER2 = names.LLAMA | WeightsMapper((("c_fc", "up"), ("c_proj", "down")))


def bigcode_names(c: Any) -> WeightsMapper:
    """GPT-2's names, for matrices [out, in], which are fused by head unless all queries share a key."""
    order = () if c.multi_query else (("*.attn.qkv.*", names.BY_HEAD),)
    return WeightsMapper(names.GPT2.renames, order, names.GPT2.ignored)


def bigcode(c: Any) -> Decoder:
    norm, head_dim = LayerNorm(c.layer_norm_epsilon), c.n_embd // c.n_head
    attention = Attention(
        heads=c.n_head,
        kv_heads=1 if c.multi_query else c.n_head,
        head_dim=head_dim,
        qkv_bias=True,
        out_bias=True,
        scale=head_dim**-0.5 if c.scale_attn_weights else 1.0,
    )
    mlp = Mlp(c.n_inner or 4 * c.n_embd, configs.act(c.activation_function))
    return Decoder(
        vocab=c.vocab_size,
        width=c.n_embd,
        blocks=(Block(attention, mlp, norm),) * c.n_layer,
        norm=norm,
        tied=c.tie_word_embeddings,
        positions=Positions(c.n_positions),
    )


def starcoder2(c: Any) -> Decoder:
    norm, head_dim = LayerNorm(c.norm_epsilon), configs.head_dim(c)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim),
        qkv_bias=c.use_bias,
        out_bias=c.use_bias,
        window=c.sliding_window,
    )
    block = Block(attention, Mlp(c.intermediate_size, configs.act(c.hidden_act), bias=c.use_bias), norm)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Both language models, and the classes of StarCoder 2 without a language head."""
    yield Architecture("GPTBigCodeForCausalLM", bigcode, bigcode_names)
    yield Architecture("Starcoder2ForCausalLM", starcoder2, STARCODER2)
    yield from headless("Starcoder2", starcoder2, STARCODER2)
