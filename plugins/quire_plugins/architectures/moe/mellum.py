"""Mellum 2: the blocks of Qwen3-MoE, with sliding windows and a rotary embedding for each kind of layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    RMSNorm,
    WeightsMapper,
    hookimpl,
    softmax_router,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.moe.mixtures import is_sparse, mixture, with_mixtures

NAMES = names.LLAMA | names.MOE | WeightsMapper(ignored=("mtp.*",))


def decoder(c: Any) -> Decoder:
    normed = with_attention(llama.decoder(c), qk_norm=RMSNorm(c.rms_norm_eps))
    router = softmax_router(c.num_experts_per_tok, c.norm_topk_prob)
    moe = mixture(c, c.moe_intermediate_size, c.num_experts, router)
    return with_mixtures(llama.with_layer_types(c, normed), moe, is_sparse(c))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`MellumForCausalLM`, the only architecture."""
    yield Architecture(name="MellumForCausalLM", decoder=decoder, names=NAMES)
