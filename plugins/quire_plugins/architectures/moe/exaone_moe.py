"""K-EXAONE: the attention of EXAONE 4 with norms before each branch, and mixtures with the router of DeepSeek V3."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    ExpertGroups,
    ExpertRouter,
    GatedMlp,
    Routing,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_blocks,
)
from quire_plugins.architectures.dense.exaone import exaone4
from quire_plugins.architectures.moe.mixtures import is_sparse, mixture, with_mixtures


def decoder(c: Any) -> Decoder:
    before = with_blocks(exaone4(c), lambda _, block: replace(block, norm_in=True, norm_out=False))
    groups = ExpertGroups(c.n_group, c.topk_group) if c.n_group > 1 else None
    routing = Routing(c.num_experts_per_tok, "sigmoid", c.norm_topk_prob, c.routed_scaling_factor, groups)
    shared = GatedMlp(c.moe_intermediate_size * c.num_shared_experts, configs.act(c.hidden_act))
    moe = mixture(c, c.moe_intermediate_size, c.num_experts, ExpertRouter(routing, corrected=True), shared)
    return with_mixtures(before, moe, is_sparse(c))


NAMES = (
    names.LLAMA
    | names.MOE
    | WeightsMapper((("mlp.e_score_correction_bias", "mlp.routing.correction"),), ignored=("mtp.*",))
)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`ExaoneMoeForCausalLM`, the only architecture."""
    yield Architecture(name="ExaoneMoeForCausalLM", decoder=decoder, names=NAMES)
