"""Nemotron-H: every layer is either Mamba-2, attention without positions, an MLP, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    CheckpointError,
    Decoder,
    Expert,
    ExpertGroups,
    ExpertRouter,
    MixerBlock,
    Mlp,
    Moe,
    RMSNorm,
    Routing,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
)
from quire_models.parts.recurrent.mamba import GatedNorm, Mamba2

_ROOTS = (("embeddings", "embed"), ("layers", "blocks"), ("norm_f", "norm"))
NAMES = WeightsMapper(
    (
        *((f"{root}.{theirs}", ours) for root in ("model", "backbone") for theirs, ours in _ROOTS),
        ("lm_head", "head"),
        ("norm", "mixer_in"),
        ("mixer.norm", "mixer.norm"),
        ("conv1d", "conv"),
        ("out_proj", "o"),
        ("q_proj", "q"),
        ("k_proj", "k"),
        ("v_proj", "v"),
        ("o_proj", "o"),
        ("up_proj", "up"),
        ("down_proj", "down"),
        ("mixer.gate", "mixer.router"),
        ("mixer.gate.e_score_correction_bias", "mixer.routing.correction"),
        ("shared_experts", "shared"),
    ),
    ignored=("mtp.*",),
)


def decoder(c: Any) -> Decoder:
    norm, kinds = RMSNorm(c.layer_norm_epsilon), _mixers(c)
    unknown = set(c.layers_block_type) - set(kinds)
    if unknown:
        raise CheckpointError(f"config.json has layers_block_type {min(unknown)!r}; known are {', '.join(kinds)}.")
    blocks = tuple(MixerBlock(kinds[kind], norm) for kind in c.layers_block_type)
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


def _mixers(c: Any) -> dict[str, Any]:
    """The mixer of each kind of layer."""
    act = configs.act(c.mlp_hidden_act)
    mixers: dict[str, Any] = {
        "linear_attention": Mamba2(
            heads=c.mamba_num_heads,
            head_dim=c.mamba_head_dim,
            state_size=c.ssm_state_size,
            groups=c.n_groups,
            kernel=c.conv_kernel,
            act=configs.act(c.mamba_hidden_act),
            conv_bias=c.use_conv_bias,
            bias=c.use_bias,
            out_bias=c.use_bias,
            norm=GatedNorm(c.layer_norm_epsilon, c.n_groups),
            limits=(c.time_step_min, float("inf")),
        ),
        "full_attention": Attention(c.num_attention_heads, c.num_key_value_heads, c.head_dim),
        "mlp": Mlp(c.intermediate_size, act, bias=c.mlp_bias),
    }
    return {**mixers, "moe": _moe(c, act)} if "moe" in c.layers_block_type else mixers


def _moe(c: Any, act: str) -> Moe:
    if c.moe_latent_size is not None:
        raise CheckpointError("config.json has moe_latent_size; experts of another width are not supported.")
    groups = ExpertGroups(c.n_group, c.topk_group) if c.n_group > 1 else None
    routing = Routing(c.num_experts_per_tok, "sigmoid", c.norm_topk_prob, c.routed_scaling_factor, groups)
    return Moe(
        expert=Expert(c.moe_intermediate_size, act, gated=False),
        experts=c.n_routed_experts,
        router=ExpertRouter(routing, corrected=True),
        shared=Mlp(c.moe_shared_expert_intermediate_size, act, bias=c.mlp_bias),
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`NemotronHForCausalLM`, the only architecture."""
    yield Architecture(name="NemotronHForCausalLM", decoder=decoder, names=NAMES)
