"""LFM2: short convolutions, and attention in some layers; dense, or with a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    Expert,
    ExpertRouter,
    GatedMlp,
    Moe,
    RMSNorm,
    Rope,
    Routing,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_models.parts.recurrent.convolution import ShortConv

NAMES = names.LLAMA | WeightsMapper(
    (
        ("model.embedding_norm", "norm"),
        ("operator_norm", "attn_in"),
        ("ffn_norm", "mlp_in"),
        ("conv", "attn"),
        ("conv.conv", "attn.conv"),
        ("out_proj", "o"),
        ("q_layernorm", "q_norm"),
        ("k_layernorm", "k_norm"),
        ("feed_forward", "mlp"),
        ("feed_forward.gate", "mlp.router"),
        ("feed_forward.expert_bias", "mlp.routing.correction"),
        ("w1", "gate"),
        ("w2", "down"),
        ("w3", "up"),
    )
)


def decoder(c: Any) -> Decoder:
    return _decoder(c, [GatedMlp(_intermediate_size(c))] * c.num_hidden_layers)


def moe_decoder(c: Any) -> Decoder:
    """Describes `Lfm2MoeConfig`: after `num_dense_layers` layers every MLP is a mixture."""
    routing = Routing(c.num_experts_per_tok, "sigmoid", c.norm_topk_prob, c.routed_scaling_factor)
    router = ExpertRouter(routing, corrected=c.use_expert_bias)
    moe = Moe(Expert(c.moe_intermediate_size), c.num_experts, router)
    dense = min(c.num_dense_layers, c.num_hidden_layers)
    return _decoder(c, [GatedMlp(c.intermediate_size)] * dense + [moe] * (c.num_hidden_layers - dense))


def _decoder(c: Any, mlps: list[Any]) -> Decoder:
    norm, head_dim = RMSNorm(c.norm_eps), configs.head_dim(c)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim),
        qk_norm=norm,
    )
    convolution = ShortConv(c.hidden_size, c.conv_L_cache, c.conv_bias)
    mixers = [convolution if kind == "conv" else attention for kind in c.layer_types]
    blocks = tuple(Block(mixer, mlp, norm) for mixer, mlp in zip(mixers, mlps, strict=True))
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


def _intermediate_size(c: Any) -> int:
    """Two thirds of the given size, times a factor, rounded up to a multiple."""
    size: int = c.intermediate_size
    if not c.block_auto_adjust_ff_dim:
        return size
    size = int(2 * size / 3)
    if c.block_ffn_dim_multiplier is not None:
        size = -(-int(c.block_ffn_dim_multiplier * size) // c.block_multiple_of) * c.block_multiple_of
    return size


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The dense language model, and the one with experts."""
    yield Architecture(name="Lfm2ForCausalLM", decoder=decoder, names=NAMES)
    yield Architecture(name="Lfm2MoeForCausalLM", decoder=moe_decoder, names=NAMES)
