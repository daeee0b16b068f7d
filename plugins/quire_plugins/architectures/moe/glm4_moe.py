"""GLM-4.5 and 4.6 (GLM-4-MoE), dots.llm1 and Solar Open: routers of DeepSeek V3 on Llama-like attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Block,
    Decoder,
    RMSNorm,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.moe.mixtures import corrected_router, mixture, shared_experts, with_mixtures

NAMES = names.LLAMA | names.MOE


def _with_experts(c: Any, decoder: Decoder) -> Decoder:
    moe = mixture(c, c.moe_intermediate_size, c.n_routed_experts, corrected_router(c), shared_experts(c))
    return with_mixtures(decoder, moe, lambda layer: layer >= c.first_k_dense_replace)


def glm4_moe(c: Any) -> Decoder:
    norm = RMSNorm(c.rms_norm_eps) if c.use_qk_norm else None
    return _with_experts(c, with_attention(llama.decoder(c), out_bias=False, qk_norm=norm))


def glm4_moe_names(c: Any) -> WeightsMapper:
    """Without the layers that predict further tokens, which follow the others."""
    return NAMES | WeightsMapper(ignored=configs.prediction_layers(c))


def dots1(c: Any) -> Decoder:
    return _with_experts(c, with_attention(llama.windowed(c), qk_norm=RMSNorm(c.rms_norm_eps)))


def solar(c: Any) -> Decoder:
    """Describes `SolarOpenConfig`: all layers are mixtures."""
    norm, attention = RMSNorm(c.rms_norm_eps), replace(llama.attention(c), out_bias=False)
    moe = mixture(c, c.moe_intermediate_size, c.n_routed_experts, corrected_router(c), shared_experts(c))
    blocks = (Block(attention, moe, norm),) * c.num_hidden_layers
    return Decoder(c.vocab_size, c.hidden_size, blocks, norm, tied=c.tie_word_embeddings)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """GLM-4-MoE, dots.llm1 and Solar Open as language models."""
    yield Architecture(name="Glm4MoeForCausalLM", decoder=glm4_moe, names=glm4_moe_names)
    yield Architecture(name="Dots1ForCausalLM", decoder=dots1, names=NAMES)
    yield Architecture(name="SolarOpenForCausalLM", decoder=solar, names=NAMES)
