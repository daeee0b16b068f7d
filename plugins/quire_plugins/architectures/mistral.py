"""Mistral: Llama with an optional sliding window. Mixtral: with a mixture of experts.

Ministral has windows in some layers; Ministral 3 scales queries by their position.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    Expert,
    Moe,
    QueryScaling,
    config_fields as configs,
    headless,
    hookimpl,
    softmax_router,
    weight_names as names,
    with_attention,
    with_blocks,
)
from quire_plugins.architectures import llama


def decoder(c: Any) -> Decoder:
    return with_attention(llama.decoder(c), window=configs.optional(c, "sliding_window", None))


def ministral3(c: Any) -> Decoder:
    rope = configs.rope_settings(c)
    if "llama_4_scaling_beta" not in rope:
        return decoder(c)
    scaling = QueryScaling(rope["llama_4_scaling_beta"], rope["original_max_position_embeddings"])
    return with_attention(decoder(c), query_scaling=scaling)


def mixtral(c: Any) -> Decoder:
    expert = Expert(c.intermediate_size, configs.act(c.hidden_act))
    moe = Moe(expert, c.num_local_experts, softmax_router(c.num_experts_per_tok))
    return with_blocks(decoder(c), lambda _, block: replace(block, mlp=moe))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Mistral, Ministral, Mixtral, and the classes without a language head."""
    yield Architecture(name="MistralForCausalLM", decoder=decoder, names=names.LLAMA)
    yield Architecture(name="MinistralForCausalLM", decoder=llama.windowed, names=names.LLAMA)
    yield Architecture(name="Ministral3ForCausalLM", decoder=ministral3, names=names.LLAMA)
    yield Architecture(name="MixtralForCausalLM", decoder=mixtral, names=names.LLAMA | names.MIXTRAL)
    yield from headless("Mistral", decoder, names.LLAMA)
    yield from headless("Ministral", llama.windowed, names.LLAMA)
    yield from headless("Ministral3", ministral3, names.LLAMA)
    yield from headless("Mixtral", mixtral, names.LLAMA | names.MIXTRAL)
