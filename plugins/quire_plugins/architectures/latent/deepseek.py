"""DeepSeek V2 and V3, of which Kimi K2 is one, and families with the same blocks: GLM-4.7-Flash, Mistral 4, Youtu."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Block,
    Decoder,
    Expert,
    ExpertGroups,
    ExpertRouter,
    GatedMlp,
    Moe,
    QueryScaling,
    RMSNorm,
    Routing,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_attention,
    with_blocks,
)
from quire_plugins.architectures.latent import latent_attention


def dense(c: Any, interleaved: bool | None = None) -> Decoder:
    """Without experts; also Youtu."""
    rotates_neighbors = configs.optional(c, "rope_interleave", True) if interleaved is None else interleaved
    norm = RMSNorm(c.rms_norm_eps)
    mlp = GatedMlp(c.intermediate_size, configs.act(c.hidden_act), bias=configs.optional(c, "mlp_bias", False))
    return Decoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=(Block(latent_attention.attention(c, rotates_neighbors), mlp, norm),) * c.num_hidden_layers,
        norm=norm,
        tied=c.tie_word_embeddings,
    )


def _with_experts(c: Any, decoder: Decoder, router: ExpertRouter) -> Decoder:
    """The mixture takes the place of the MLPs from `first_k_dense_replace` on, or where `mlp_layer_types` says so."""
    act = configs.act(c.hidden_act)
    shared = GatedMlp(c.moe_intermediate_size * c.n_shared_experts, act, bias=configs.optional(c, "mlp_bias", False))
    moe = Moe(Expert(c.moe_intermediate_size, act), c.n_routed_experts, router, shared)
    kinds = configs.optional(c, "mlp_layer_types", None)

    def change(layer: int, block: Any) -> Any:
        sparse = kinds[layer] == "sparse" if kinds else layer >= c.first_k_dense_replace
        return replace(block, mlp=moe) if sparse else block

    return with_blocks(decoder, change)


def v2(c: Any) -> Decoder:
    limited = c.topk_method == "group_limited_greedy"
    groups = ExpertGroups(c.n_group, c.topk_group, best=1) if limited else None
    routing = Routing(c.num_experts_per_tok, "softmax", scale=c.routed_scaling_factor, groups=groups)
    return _with_experts(c, dense(c, interleaved=True), ExpertRouter(routing))


def _grouped(c: Any, scores: Any) -> Routing:
    groups = ExpertGroups(c.n_group, c.topk_group)
    return Routing(c.num_experts_per_tok, scores, c.norm_topk_prob, c.routed_scaling_factor, groups)


def v3(c: Any) -> Decoder:
    return _with_experts(c, dense(c), ExpertRouter(_grouped(c, "sigmoid"), corrected=True))


def mistral4(c: Any) -> Decoder:
    decoder = _with_experts(c, dense(c), ExpertRouter(_grouped(c, "softmax")))
    settings = configs.rope_settings(c)
    scaling = QueryScaling(settings["llama_4_scaling_beta"], settings["original_max_position_embeddings"])
    return with_attention(decoder, query_scaling=scaling)


def _names(c: Any) -> names.WeightsMapper:
    """Layers after the last one predict further tokens; they are left out."""
    ignored = tuple(f"model.layers.{c.num_hidden_layers + i}.*" for i in range(4))
    return names.LLAMA | names.MOE | latent_attention.NAMES | names.WeightsMapper(ignored=ignored)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """DeepSeek V2 and V3, GLM-4.7-Flash, Mistral 4 and Youtu."""
    yield Architecture(name="DeepseekV2ForCausalLM", decoder=v2, names=_names)
    yield Architecture(name="DeepseekV3ForCausalLM", decoder=v3, names=_names)
    yield Architecture(name="Glm4MoeLiteForCausalLM", decoder=v3, names=_names)
    yield Architecture(name="Mistral4ForCausalLM", decoder=mistral4, names=_names)
    yield Architecture(name="YoutuForCausalLM", decoder=dense, names=_names)
