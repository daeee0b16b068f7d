"""Hunyuan V1, dense and with mixtures: queries and keys are normalized after they are rotated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    GatedMlp,
    RMSNorm,
    Rope,
    WeightsMapper,
    config_fields as configs,
    headless,
    hookimpl,
    softmax_router,
    weight_names as names,
    with_attention,
    with_blocks,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.moe.mixtures import mixture

NAMES = (
    names.LLAMA
    | names.MOE
    | WeightsMapper(
        (
            ("query_layernorm", "q_norm"),
            ("key_layernorm", "k_norm"),
            ("mlp.gate.wg", "mlp.router"),
            ("mlp.shared_mlp", "mlp.shared"),
        )
    )
)


def _rope(c: Any) -> Rope:
    """With `alpha`, "dynamic" means a base that is larger by a power of it, for all lengths."""
    size, parameters = configs.head_dim(c), dict(c.rope_parameters or {})
    alpha = parameters.get("alpha")
    if parameters.get("rope_type") != "dynamic" or not alpha:
        return Rope.from_config(c, size)
    return Rope(size, parameters["rope_theta"] * alpha ** (size / (size - 2)))


def dense(c: Any) -> Decoder:
    normed = with_attention(llama.decoder(c), rope=_rope(c), qk_norm=RMSNorm(c.rms_norm_eps), norm_after_rope=True)
    return with_blocks(normed, lambda _, block: replace(block, mlp=replace(block.mlp, bias=False)))


def sparse(c: Any) -> Decoder:
    """Describes `HunYuanMoEV1Config`: every layer is a mixture, possibly of sizes of its own."""
    shared = GatedMlp(c.intermediate_size, configs.act(c.hidden_act))

    def change(layer: int, block: Any) -> Any:
        experts, top_k = (n if isinstance(n, int) else n[layer] for n in (c.num_experts, c.moe_topk))
        return replace(block, mlp=mixture(c, c.intermediate_size, experts, softmax_router(top_k), shared))

    return with_blocks(dense(c), change)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Both language models, and their classes without a language head."""
    yield Architecture(name="HunYuanDenseV1ForCausalLM", decoder=dense, names=NAMES)
    yield Architecture(name="HunYuanMoEV1ForCausalLM", decoder=sparse, names=NAMES)
    yield from headless("HunYuanDenseV1", dense, NAMES)
    yield from headless("HunYuanMoEV1", sparse, NAMES)
