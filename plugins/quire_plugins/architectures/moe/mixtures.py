"""What several families share: blocks of which some are mixtures, and the router of DeepSeek V3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    CheckpointError,
    Decoder,
    Expert,
    ExpertGroups,
    ExpertRouter,
    ExpertRouterPart,
    GatedMlp,
    Moe,
    Part,
    Routing,
    config_fields as configs,
    with_blocks,
)


def mixture(c: Any, intermediate_size: int, experts: int, router: ExpertRouterPart, shared: Part | None = None) -> Moe:
    """Gated experts with the activation of the config. Raises CheckpointError if a token uses more than there are."""
    if not 1 <= router.top_k <= experts:
        raise CheckpointError(f"config.json lets each token use {router.top_k} of {experts} experts.")
    return Moe(Expert(intermediate_size, configs.act(c.hidden_act)), experts, router, shared)


def with_mixtures(decoder: Decoder, moe: Moe, sparse: Callable[[int], bool] = lambda layer: True) -> Decoder:
    """The decoder with a mixture in place of the MLP of every layer for which `sparse` is true."""
    return with_blocks(decoder, lambda layer, block: replace(block, mlp=moe) if sparse(layer) else block)


def is_sparse(c: Any) -> Callable[[int], bool]:
    """Which layers are mixtures, by `mlp_layer_types`, for `with_mixtures`."""
    return lambda layer: bool(c.mlp_layer_types[layer] == "sparse")


def shared_experts(c: Any) -> GatedMlp | None:
    """Shared experts as one MLP of `n_shared_experts` times the size of an expert."""
    count = c.n_shared_experts or 0
    return GatedMlp(c.moe_intermediate_size * count, configs.act(c.hidden_act)) if count else None


def corrected_router(c: Any) -> ExpertRouter:
    """Sigmoid scores, a correction of the choice, and a choice within groups, as in DeepSeek V3."""
    groups = None
    if c.n_group and c.n_group > 1:
        if c.n_routed_experts % c.n_group or not 1 <= c.topk_group <= c.n_group:
            raise CheckpointError(
                f"config.json has n_routed_experts {c.n_routed_experts}, n_group {c.n_group} and topk_group "
                f"{c.topk_group}, which do not fit together."
            )
        groups = ExpertGroups(c.n_group, c.topk_group)
    routing = Routing(c.num_experts_per_tok, "sigmoid", bool(c.norm_topk_prob), c.routed_scaling_factor, groups=groups)
    return ExpertRouter(routing, corrected=True)
