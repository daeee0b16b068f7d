"""Granite: Llama with multipliers on embeddings, attention scores, residuals and logits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import Architecture, Decoder, hookimpl, weight_names as names, with_attention, with_blocks
from quire_plugins.architectures import llama


def decoder(c: Any) -> Decoder:
    scaled = with_attention(llama.decoder(c), scale=c.attention_multiplier)
    scaled = with_blocks(scaled, lambda _, block: replace(block, residual_scale=c.residual_multiplier))
    return replace(scaled, embed_scale=c.embedding_multiplier, logit_scale=1 / c.logits_scaling)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`GraniteForCausalLM`, the only architecture."""
    yield Architecture(name="GraniteForCausalLM", decoder=decoder, names=names.LLAMA)
