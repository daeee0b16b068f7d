"""Kimi Linear: Kimi Delta Attention, and latent attention without positions in every fourth layer; experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Block,
    Decoder,
    Expert,
    ExpertGroups,
    ExpertRouter,
    GatedMlp,
    KimiDelta,
    LatentAttention,
    Moe,
    RMSNorm,
    Routing,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures.latent import latent_attention

if TYPE_CHECKING:
    pass


def decoder(c: Any) -> Decoder:
    norm, act = RMSNorm(c.rms_norm_eps), configs.act(c.hidden_act)
    delta = KimiDelta(c.linear_num_heads, c.linear_head_dim, c.linear_conv_kernel_dim, act, c.rms_norm_eps)
    latent = LatentAttention(
        heads=c.num_attention_heads,
        latent_dim=c.kv_lora_rank,
        plain_dim=c.qk_nope_head_dim,
        rope_dim=c.qk_rope_head_dim,
        value_dim=c.v_head_dim,
        norm=RMSNorm(),
        q_rank=c.q_lora_rank,
        bias=c.attention_bias,
    )
    groups = ExpertGroups(c.n_group, c.topk_group)
    routing = Routing(c.num_experts_per_tok, "sigmoid", c.norm_topk_prob, c.routed_scaling_factor, groups)
    moe = Moe(
        expert=Expert(c.moe_intermediate_size, act),
        experts=c.num_local_experts,
        router=ExpertRouter(routing, corrected=True),
        shared=GatedMlp(c.moe_intermediate_size * c.n_shared_experts, act),
    )
    dense = GatedMlp(c.intermediate_size, act)
    blocks = tuple(
        Block(latent if mixer == "full_attention" else delta, moe if mlp == "sparse" else dense, norm)
        for mixer, mlp in zip(c.layer_types, c.mlp_layer_types, strict=True)
    )
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


NAMES = (
    names.LLAMA
    | names.MOE
    | WeightsMapper(latent_attention.NAMES.renames)
    | names.MIXTRAL
    | WeightsMapper(
        (
            ("block_sparse_moe.gate.e_score_correction_bias", "mlp.routing.correction"),
            ("self_attn.forget_gate", "attn"),
            ("conv1d", "conv"),
            *((f"{name}_conv1d", f"{name}_conv") for name in "qkv"),
            *((f"{name}_proj", name) for name in ("b", "f_a", "f_b", "g_a", "g_b")),
            ("o_norm", "norm"),
        ),
        transforms=(("*.attn.A_log", names.as_vector), ("*.attn.kv_b.weight", latent_attention.EXPANSION)),
    )
)


def tensor_names(c: Any) -> WeightsMapper:
    """Only the queries of latent attention are stored in another order."""
    latent = [layer for layer, kind in enumerate(c.layer_types) if kind == "full_attention"]
    queries = tuple((f"blocks.{i}.attn.{q}.weight", latent_attention.QUERIES) for i in latent for q in ("q", "q_b"))
    return NAMES | WeightsMapper(transforms=queries)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`KimiLinearForCausalLM`, the only architecture."""
    yield Architecture(name="KimiLinearForCausalLM", decoder=decoder, names=tensor_names)
