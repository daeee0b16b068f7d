"""DBRX: layer norms without biases, clipped queries, keys and values, and experts stored as one matrix each way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    CheckpointError,
    Decoder,
    Expert,
    LayerNorm,
    Moe,
    Rope,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    softmax_router,
)


def _by_expert(tensor: Any, decoder: Decoder) -> Any:
    """[experts · intermediate_size, width] as [experts, intermediate_size, width]."""
    mixture: Any = decoder.blocks[0]
    return tensor.view(mixture.mlp.experts, -1, decoder.width)


def _transposed_by_expert(tensor: Any, decoder: Decoder) -> Any:
    """[experts · intermediate_size, width] as [experts, width, intermediate_size]."""
    return _by_expert(tensor, decoder).transpose(1, 2)


NAMES = WeightsMapper(
    (
        ("transformer.wte", "embed"),
        ("transformer.blocks", "blocks"),
        ("transformer.norm_f", "norm"),
        ("lm_head", "head"),
        ("norm_attn_norm.norm_1", "attn_in"),
        ("norm_attn_norm.norm_2", "mlp_in"),
        ("norm_attn_norm.attn.Wqkv", "attn.qkv"),
        ("norm_attn_norm.attn.out_proj", "attn.o"),
        ("ffn.router.layer", "mlp.router"),
        ("ffn.experts.mlp.w1", "mlp.experts.gate"),
        ("ffn.experts.mlp.v1", "mlp.experts.up"),
        ("ffn.experts.mlp.w2", "mlp.experts.down"),
    ),
    transforms=(
        ("*.mlp.experts.gate", _by_expert),
        ("*.mlp.experts.up", _by_expert),
        ("*.mlp.experts.down", _transposed_by_expert),
    ),
)


def decoder(c: Any) -> Decoder:
    """Describes `DbrxConfig`, whose sizes of attention and of experts are in configs of their own."""
    attention, ffn, head_dim = c.attn_config, c.ffn_config, c.d_model // c.n_heads
    if ffn.moe_normalize_expert_weights not in (None, 1, 1.0):
        raise CheckpointError(
            f"config.json has moe_normalize_expert_weights {ffn.moe_normalize_expert_weights}; only 1 is supported."
        )
    norm = LayerNorm(bias=False)
    theta = configs.optional(attention, "rope_theta", None)
    rope = Rope.from_config(c, head_dim) if theta is None else Rope(head_dim, theta)
    attn = Attention(c.n_heads, attention.kv_n_heads, head_dim, rope=rope, clip=attention.clip_qkv)
    expert = Expert(ffn.ffn_hidden_size, configs.act((ffn.ffn_act_fn or {}).get("name", "silu")))
    router = softmax_router(ffn.moe_top_k, ffn.moe_normalize_expert_weights is not None)
    block = Block(attn, Moe(expert, ffn.moe_num_experts, router), norm)
    return Decoder(c.vocab_size, c.d_model, (block,) * c.n_layers, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """DBRX as a language model."""
    yield Architecture(name="DbrxForCausalLM", decoder=decoder, names=NAMES)
