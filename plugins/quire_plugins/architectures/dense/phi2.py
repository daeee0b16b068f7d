"""Phi-1, 1.5 and 2: parallel branches behind one layer norm, biases everywhere. Part of the plugin `phi`."""

from __future__ import annotations

from typing import Any

from quire.plugin import (
    Attention,
    Decoder,
    LayerNorm,
    Mlp,
    ParallelBlock,
    Rope,
    WeightsMapper,
    config_fields as configs,
    weight_names as names,
)

NAMES = names.LLAMA | WeightsMapper(
    (
        ("model.final_layernorm", "norm"),
        ("dense", "o"),
        ("mlp.fc1", "mlp.up"),
        ("mlp.fc2", "mlp.down"),
        ("q_layernorm", "q_norm"),
        ("k_layernorm", "k_norm"),
    )
)


def decoder(c: Any) -> Decoder:
    norm, head_dim = LayerNorm(c.layer_norm_eps), configs.head_dim(c)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=configs.kv_heads(c),
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim),
        qkv_bias=True,
        out_bias=True,
        qk_norm=norm if c.qk_layernorm else None,
    )
    block = ParallelBlock(attention, Mlp(c.intermediate_size, configs.act(c.hidden_act)), norm)
    blocks = (block,) * c.num_hidden_layers
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings, head_bias=True)
