"""Hunyuan 3 (Hy3): norms of queries and keys, and sigmoid routing with a correction beside shared experts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    ExpertRouter,
    GatedMlp,
    RMSNorm,
    Routing,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.moe.mixtures import is_sparse, mixture, with_mixtures


def decoder(c: Any) -> Decoder:
    normed = with_attention(llama.decoder(c), qk_norm=RMSNorm(c.rms_norm_eps))
    routing = Routing(c.num_experts_per_tok, "sigmoid", renormalize=True, scale=c.router_scaling_factor)
    shared = GatedMlp(c.moe_intermediate_size * c.num_shared_experts, configs.act(c.hidden_act), bias=c.mlp_bias)
    moe = mixture(c, c.moe_intermediate_size, c.num_experts, ExpertRouter(routing, corrected=True), shared)
    return with_mixtures(normed, moe, is_sparse(c))


def tensor_names(c: Any) -> WeightsMapper:
    """Without the layers that predict further tokens, which follow the others."""
    renames = (
        ("mlp.router.gate", "mlp.router"),
        ("mlp.expert_bias", "mlp.routing.correction"),
        ("mlp.e_score_correction_bias", "mlp.routing.correction"),
        ("shared_mlp", "shared"),
    )
    further = tuple(f"model.layers.{c.num_hidden_layers + i}.*" for i in range(4))
    return names.LLAMA | names.MOE | WeightsMapper(renames, ignored=further)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`HYV3ForCausalLM`, the only architecture."""
    yield Architecture(name="HYV3ForCausalLM", decoder=decoder, names=tensor_names)
