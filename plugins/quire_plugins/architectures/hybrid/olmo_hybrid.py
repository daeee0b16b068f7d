"""OLMo Hybrid: gated delta nets with norms before, and attention with norms after, as in OLMo 2."""

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
    weight_names as names,
)
from quire_plugins.architectures.hybrid.qwen_delta import delta_net


def decoder(c: Any) -> Decoder:
    norm, head_dim = RMSNorm(c.rms_norm_eps), configs.head_dim(c)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim) if (c.rope_parameters or {}).get("rope_theta") is not None else None,
        qkv_bias=c.attention_bias,
        out_bias=c.attention_bias,
        qk_norm=norm,
        qk_norm_wide=True,
    )
    delta = replace(
        delta_net(c, ("q", "k", "v", "z", "b", "a")),
        eps=1e-5,  # no field of the config
        factor=2.0 if c.linear_allow_neg_eigval else 1.0,
    )
    mlp = GatedMlp(c.intermediate_size, configs.act(c.hidden_act))
    kinds = {
        "linear_attention": Block(delta, mlp, norm),
        "full_attention": Block(attention, mlp, norm, norm_in=False, norm_out=True),
    }
    blocks = tuple(kinds[kind] for kind in c.layer_types)
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


def tensor_names(c: Any) -> WeightsMapper:
    """The norm before the MLP of one kind of layer has the name of the norm after attention in the other."""
    after = tuple(
        (f"model.layers.{i}.{name}", f"blocks.{i}.attn_out")
        for i, kind in enumerate(c.layer_types)
        for name in ("post_attention_layernorm", "feedforward_layer_norm")
        if kind == "full_attention"
    )
    return names.LLAMA | WeightsMapper(
        (
            ("linear_attn", "attn"),
            ("linear_attn.g_proj", "attn.z"),
            ("linear_attn.o_norm", "attn.norm"),
            ("b_proj", "b"),
            ("a_proj", "a"),
            ("conv1d", "conv"),
            ("q_conv1d", "q_conv"),
            ("k_conv1d", "k_conv"),
            ("v_conv1d", "v_conv"),
            ("attention_layer_norm", "attn_in"),
            ("feedforward_layer_norm", "mlp_in"),
            ("post_feedforward_layernorm", "mlp_out"),
            *after,
        )
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`OlmoHybridForCausalLM`, the only architecture."""
    yield Architecture(name="OlmoHybridForCausalLM", decoder=decoder, names=tensor_names)
