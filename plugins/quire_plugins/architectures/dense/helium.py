"""Helium: Llama with an interleaved rotary embedding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import Architecture, Decoder, headless, hookimpl, weight_names as names, with_blocks
from quire_plugins.architectures import llama


def decoder(c: Any) -> Decoder:
    def block(_: int, part: Any) -> Any:
        rope = replace(part.attn.rope, interleaved=True)
        return replace(part, attn=replace(part.attn, rope=rope, out_bias=False))

    return with_blocks(llama.decoder(c), block)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, and the classes without a language head."""
    yield Architecture("HeliumForCausalLM", decoder, names.LLAMA)
    yield from headless("Helium", decoder, names.LLAMA)
