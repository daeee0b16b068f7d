"""Granite: Llama with multipliers on embeddings, attention scores, residuals and logits.

HyperCLOVA X has the same, a norm after each branch as well, and multiplies logits where Granite divides them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    WeightsMapper,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
    with_attention,
    with_blocks,
)
from quire_plugins.architectures import llama


def decoder(c: Any) -> Decoder:
    scaled = with_attention(llama.decoder(c), scale=c.attention_multiplier)
    scaled = with_blocks(scaled, lambda _, block: replace(block, residual_scale=c.residual_multiplier))
    return replace(scaled, embed_scale=c.embedding_multiplier, scales_rows=True, logit_scale=1 / c.logits_scaling)


CLOVA = names.LLAMA | WeightsMapper((("post_norm1", "attn_out"), ("post_norm2", "mlp_out")))


def clova(c: Any) -> Decoder:
    normed = with_blocks(decoder(c), lambda _, block: replace(block, norm_out=c.use_post_norm))
    return replace(normed, logit_scale=c.logits_scaling)


def windowed(c: Any, decoder: Decoder) -> Decoder:
    """The decoder with sinks, and with a window and a base of the rotary embedding for each layer; 0: no positions."""

    def change(layer: int, part: Any) -> Any:
        theta = c.layer_rope_theta[layer]
        rope = replace(part.attn.rope, theta=float(theta)) if theta else None
        return replace(part, attn=replace(part.attn, rope=rope, window=configs.window(c, layer), sinks=True))

    return with_blocks(decoder, change)


def swa(c: Any) -> Decoder:
    return windowed(c, decoder(c))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language models, and the classes of HyperCLOVA X without a language head."""
    yield Architecture(name="GraniteForCausalLM", decoder=decoder, names=names.LLAMA)
    yield Architecture(name="GraniteSWAForCausalLM", decoder=swa, names=names.LLAMA)
    yield Architecture(name="HyperCLOVAXForCausalLM", decoder=clova, names=CLOVA)
    yield from headless("HyperCLOVAX", clova, CLOVA)
