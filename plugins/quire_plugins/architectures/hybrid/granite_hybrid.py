"""Granite 4: Mamba-2, and attention without positions in some layers; dense, or with a mixture of experts."""

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
    Rope,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    softmax_router,
)
from quire_models.parts.recurrent.mamba import GatedNorm
from quire_plugins.architectures.hybrid import mamba_fields


def decoder(c: Any) -> Decoder:
    norm, head_dim, act = RMSNorm(c.rms_norm_eps), configs.head_dim(c), configs.act(c.hidden_act)
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim) if c.position_embedding_type == "rope" else None,
        qkv_bias=c.attention_bias,
        out_bias=c.attention_bias,
        scale=c.attention_multiplier,
    )
    mamba = mamba_fields.mamba2(c, GatedNorm(c.rms_norm_eps, c.mamba_n_groups))
    mlp: Any = GatedMlp(c.shared_intermediate_size, act)
    if c.num_local_experts:
        expert = Expert(c.intermediate_size, act)
        mlp = Moe(expert, c.num_local_experts, softmax_router(c.num_experts_per_tok), shared=mlp)
    mixers = [attention if kind == "full_attention" else mamba for kind in c.layer_types]
    return Decoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=tuple(Block(mixer, mlp, norm, residual_scale=c.residual_multiplier) for mixer in mixers),
        norm=norm,
        tied=c.tie_word_embeddings,
        embed_scale=c.embedding_multiplier,
        scales_rows=True,
        logit_scale=1 / c.logits_scaling,
    )


def tensor_names(c: Any) -> WeightsMapper:
    """Beside experts, the MLP of every token is the shared one."""
    shared = "mlp.shared" if c.num_local_experts else "mlp"
    return mamba_fields.NAMES | WeightsMapper(
        (
            ("shared_mlp", shared),
            ("shared_mlp.input_linear", f"{shared}.gate_up"),
            ("shared_mlp.output_linear", f"{shared}.down"),
            ("block_sparse_moe", "mlp"),
            ("block_sparse_moe.router", "mlp.router"),
            ("block_sparse_moe.router.layer", "mlp.router"),
            ("block_sparse_moe.input_linear.weight", "mlp.experts.gate_up"),
            ("block_sparse_moe.output_linear.weight", "mlp.experts.down"),
            ("gate_up_proj", "gate_up"),
        )
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`GraniteMoeHybridForCausalLM`, the only architecture."""
    yield Architecture(name="GraniteMoeHybridForCausalLM", decoder=decoder, names=tensor_names)
