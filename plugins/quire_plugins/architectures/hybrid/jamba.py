"""Jamba: Mamba, attention without positions in some layers, and a mixture of experts in some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    Expert,
    GatedMlp,
    Moe,
    RMSNorm,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    softmax_router,
)
from quire_models.parts.recurrent.mamba import Mamba1
from quire_plugins.architectures.hybrid import mamba_fields

NAMES = mamba_fields.NAMES | WeightsMapper(
    (
        ("dt_layernorm", "dt_norm"),
        ("b_layernorm", "b_norm"),
        ("c_layernorm", "c_norm"),
    )
)


def decoder(c: Any) -> Decoder:
    norm, act = RMSNorm(c.rms_norm_eps), configs.act(c.hidden_act)
    attention = Attention(c.num_attention_heads, c.num_key_value_heads, configs.head_dim(c))
    mamba = Mamba1(
        inner=c.mamba_expand * c.hidden_size,
        state_size=c.mamba_d_state,
        rank=int(c.mamba_dt_rank),
        kernel=c.mamba_d_conv,
        act=act,
        conv_bias=c.mamba_conv_bias,
        bias=c.mamba_proj_bias,
        norm=norm,
    )
    dense = GatedMlp(c.intermediate_size, act)
    moe = Moe(Expert(c.intermediate_size, act), c.num_experts, softmax_router(c.num_experts_per_tok, False))
    blocks = tuple(
        Block(attention if kind == "attention" else mamba, moe if experts > 1 else dense, norm)
        for kind, experts in zip(c.layers_block_type, c.layers_num_experts, strict=True)
    )
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`JambaForCausalLM`, the only architecture."""
    yield Architecture(name="JambaForCausalLM", decoder=decoder, names=NAMES)
