"""GPT-NeoX (Pythia, Dolly) and Persimmon: layer norms, plain MLPs, queries, keys and values fused by head."""

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
    headless,
    hookimpl,
    weight_names as names,
)

FUSED = WeightsMapper(
    (
        ("query_key_value", "qkv"),
        ("dense", "o"),
        ("dense_h_to_4h", "up"),
        ("dense_4h_to_h", "down"),
        ("input_layernorm", "attn_in"),
        ("post_attention_layernorm", "mlp_in"),
    ),
    transforms=(("*.attn.qkv.*", names.BY_HEAD),),
)

NEOX = FUSED | WeightsMapper(
    (
        ("gpt_neox.embed_in", "embed"),
        ("gpt_neox.layers", "blocks"),
        ("gpt_neox.final_layer_norm", "norm"),
        ("embed_out", "head"),
        ("lm_head", "head"),
        ("attention", "attn"),
    ),
    ignored=("*.attention.bias", "*.attention.masked_bias", "*.attention.rotary_emb.inv_freq"),
)

PERSIMMON = (
    names.LLAMA
    | FUSED
    | WeightsMapper(
        (("model.final_layernorm", "norm"), ("q_layernorm", "q_norm"), ("k_layernorm", "k_norm")),
    )
)


def neox(c: Any) -> Decoder:
    attention = _attention(c, qkv_bias=c.attention_bias, out_bias=c.attention_bias)
    norm, mlp = LayerNorm(c.layer_norm_eps), Mlp(c.intermediate_size, configs.act(c.hidden_act))
    block = ParallelBlock(attention, mlp, norm, norms=2) if c.use_parallel_residual else Block(attention, mlp, norm)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm, tied=c.tie_word_embeddings)


def persimmon(c: Any) -> Decoder:
    norm = LayerNorm(c.layer_norm_eps)
    attention = _attention(c, qkv_bias=True, out_bias=True, qk_norm=norm if c.qk_layernorm else None)
    block = Block(attention, Mlp(c.intermediate_size, configs.act(c.hidden_act)), norm)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_hidden_layers, norm, tied=c.tie_word_embeddings)


def _attention(c: Any, **more: Any) -> Attention:
    heads, head_dim = c.num_attention_heads, configs.head_dim(c)
    return Attention(heads, heads, head_dim, Rope.from_config(c, head_dim), **more)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Both language models, and the classes of Persimmon without a language head."""
    yield Architecture("GPTNeoXForCausalLM", neox, NEOX)
    yield Architecture("PersimmonForCausalLM", persimmon, PERSIMMON)
    yield from headless("Persimmon", persimmon, PERSIMMON)
