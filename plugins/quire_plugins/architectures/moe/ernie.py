"""Ernie 4.5, dense and with mixtures: Llama whose rotary embedding rotates neighboring dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    ExpertRouter,
    GatedMlp,
    Routing,
    WeightsMapper,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
    with_blocks,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.moe.mixtures import mixture, with_mixtures

NAMES = (
    names.LLAMA
    | names.MOE
    | WeightsMapper(
        (
            ("mlp.moe_statics.e_score_correction_bias", "mlp.routing.correction"),
            ("mlp.gate.moe_statics.e_score_correction_bias", "mlp.routing.correction"),
        ),
        transforms=(("*.mlp.routing.correction", names.as_vector),),
        ignored=("model.mtp_*",),
    )
)


def dense(c: Any) -> Decoder:
    bias = bool(c.use_bias)

    def changed(_: int, block: Any) -> Any:
        rope = replace(block.attn.rope, interleaved=True)
        attn = replace(block.attn, rope=rope, qkv_bias=bias, out_bias=bias)
        return replace(block, attn=attn, mlp=replace(block.mlp, bias=bias))

    return with_blocks(llama.decoder(c), changed)


def sparse(c: Any) -> Decoder:
    """Describes `Ernie4_5_MoeConfig`: every `moe_layer_interval`-th layer from the start to the end is a mixture."""
    count, act = c.moe_num_shared_experts or 0, configs.act(c.hidden_act)
    shared = GatedMlp(c.moe_intermediate_size * count, act, bool(c.use_bias)) if count else None
    routing = Routing(c.moe_k, "softmax", renormalize=True, least_sum=c.moe_norm_min)
    moe = mixture(c, c.moe_intermediate_size, c.moe_num_experts, ExpertRouter(routing, corrected=True), shared)
    last = c.num_hidden_layers - 1 if c.moe_layer_end_index == -1 else c.moe_layer_end_index

    def is_sparse(layer: int) -> bool:
        return (layer + 1) % c.moe_layer_interval == 0 and c.moe_layer_start_index <= layer <= last

    return replace(with_mixtures(dense(c), moe, is_sparse), head_bias=bool(c.use_bias))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Both language models, and the dense one's classes without a language head."""
    yield Architecture(name="Ernie4_5ForCausalLM", decoder=dense, names=names.LLAMA)
    yield Architecture(name="Ernie4_5_MoeForCausalLM", decoder=sparse, names=NAMES)
    yield from headless("Ernie4_5", dense, names.LLAMA)
