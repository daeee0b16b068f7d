"""OLMoE and FlexOlmo: OLMo with mixtures of experts, and one norm over all heads of queries and keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    CheckpointError,
    Decoder,
    RMSNorm,
    config_fields as configs,
    hookimpl,
    softmax_router,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures import llama, olmo
from quire_plugins.architectures.moe.mixtures import mixture, with_mixtures

NAMES = names.LLAMA | names.MOE


def _with_experts(c: Any, decoder: Decoder) -> Decoder:
    router = softmax_router(c.num_experts_per_tok, c.norm_topk_prob)
    return with_mixtures(decoder, mixture(c, c.intermediate_size, c.num_experts, router))


def olmoe(c: Any) -> Decoder:
    clip = configs.optional(c, "clip_qkv", None)
    if clip is not None:
        raise CheckpointError(f"config.json has clip_qkv {clip}; clipped queries and keys are not supported.")
    normed = with_attention(llama.decoder(c), qk_norm=RMSNorm(c.rms_norm_eps), qk_norm_wide=True)
    return _with_experts(c, normed)


def flex_olmo(c: Any) -> Decoder:
    return _with_experts(c, olmo.olmo2(c))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """OLMoE and FlexOlmo as language models."""
    yield Architecture(name="OlmoeForCausalLM", decoder=olmoe, names=NAMES)
    yield Architecture(name="FlexOlmoForCausalLM", decoder=flex_olmo, names=NAMES | names.PRE_AND_POST_NORM)
