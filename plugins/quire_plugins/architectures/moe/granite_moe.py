"""Granite-MoE: Granite with mixtures, without and with a shared expert."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    GatedMlp,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    softmax_router,
    weight_names as names,
)
from quire_plugins.architectures import granite
from quire_plugins.architectures.moe.mixtures import mixture, with_mixtures

NAMES = names.LLAMA | WeightsMapper(
    (
        ("block_sparse_moe", "mlp"),
        ("block_sparse_moe.router.layer", "mlp.router"),
        ("block_sparse_moe.input_linear.weight", "mlp.experts.gate_up"),
        ("block_sparse_moe.output_linear.weight", "mlp.experts.down"),
        ("shared_mlp", "mlp.shared"),
        ("shared_mlp.input_linear", "mlp.shared.gate_up"),
        ("shared_mlp.output_linear", "mlp.shared.down"),
    )
)


def decoder(c: Any) -> Decoder:
    size = configs.optional(c, "shared_intermediate_size", 0)
    shared = GatedMlp(size, configs.act(c.hidden_act)) if size else None
    router = softmax_router(c.num_experts_per_tok)
    return with_mixtures(granite.decoder(c), mixture(c, c.intermediate_size, c.num_local_experts, router, shared))


def swa(c: Any) -> Decoder:
    return granite.windowed(c, decoder(c))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language models without and with a shared expert, and with windows."""
    yield Architecture(name="GraniteMoeForCausalLM", decoder=decoder, names=NAMES)
    yield Architecture(name="GraniteMoeSharedForCausalLM", decoder=decoder, names=NAMES)
    yield Architecture(name="GraniteMoeSWAForCausalLM", decoder=swa, names=NAMES)
