"""Qwen2-MoE (Qwen 1.5 and 2): Qwen 2 with mixtures and a shared expert behind a gate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    GatedMlp,
    SigmoidGated,
    config_fields as configs,
    headless,
    hookimpl,
    softmax_router,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures.moe.mixtures import mixture, with_mixtures
from quire_plugins.architectures.qwen import qwen2

NAMES = names.LLAMA | names.MOE | names.GATED_SHARED


def decoder(c: Any) -> Decoder:
    """Describes `Qwen2MoeConfig`: every `decoder_sparse_step`-th layer is a mixture."""
    shared = SigmoidGated(GatedMlp(c.shared_expert_intermediate_size, configs.act(c.hidden_act)))
    router = softmax_router(c.num_experts_per_tok, c.norm_topk_prob)
    moe = mixture(c, c.moe_intermediate_size, c.num_experts, router, shared)

    def is_sparse(layer: int) -> bool:
        return layer not in c.mlp_only_layers and (layer + 1) % c.decoder_sparse_step == 0

    return with_mixtures(with_attention(qwen2(c), qkv_bias=configs.optional(c, "qkv_bias", True)), moe, is_sparse)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, and the classes without a language head."""
    yield Architecture(name="Qwen2MoeForCausalLM", decoder=decoder, names=NAMES)
    yield from headless("Qwen2Moe", decoder, NAMES)
