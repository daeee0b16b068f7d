"""Arcee (AFM): Llama with squared ReLU in MLPs without gates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    Mlp,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
    with_blocks,
)
from quire_plugins.architectures import llama


def decoder(c: Any) -> Decoder:
    mlp = Mlp(c.intermediate_size, configs.act(c.hidden_act), bias=c.mlp_bias)
    return with_blocks(llama.decoder(c), lambda _, block: replace(block, mlp=mlp))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, and the classes without a language head."""
    yield Architecture("ArceeForCausalLM", decoder, names.LLAMA)
    yield from headless("Arcee", decoder, names.LLAMA)
