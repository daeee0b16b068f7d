"""Mellum 2: the blocks of Qwen3-MoE, with sliding windows and a rotary embedding for each kind of layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    GatedMlp,
    RMSNorm,
    Rope,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    softmax_router,
    weight_names as names,
)
from quire_plugins.architectures.moe.mixtures import mixture

NAMES = names.LLAMA | names.MOE | WeightsMapper(ignored=("mtp.*",))


def decoder(c: Any) -> Decoder:
    norm = RMSNorm(c.rms_norm_eps)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        qkv_bias=c.attention_bias,
        out_bias=c.attention_bias,
        qk_norm=norm,
    )
    router = softmax_router(c.num_experts_per_tok, c.norm_topk_prob)
    moe = mixture(c, c.moe_intermediate_size, c.num_experts, router)
    dense = GatedMlp(c.intermediate_size, configs.act(c.hidden_act))

    def block(layer: int) -> Block:
        rope = Rope.from_config(c, c.head_dim, c.layer_types[layer])
        attn = replace(attention, rope=rope, window=configs.window(c, layer))
        return Block(attn, moe if c.mlp_layer_types[layer] == "sparse" else dense, norm)

    blocks = tuple(map(block, range(c.num_hidden_layers)))
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`MellumForCausalLM`, the only architecture."""
    yield Architecture(name="MellumForCausalLM", decoder=decoder, names=NAMES)
