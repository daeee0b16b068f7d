"""Seed-OSS: Llama whose output projection of attention has no bias though the others have one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import Architecture, Decoder, headless, hookimpl, weight_names as names, with_attention
from quire_plugins.architectures import llama


def decoder(c: Any) -> Decoder:
    return with_attention(llama.decoder(c), out_bias=c.attention_out_bias)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, and the classes without a language head."""
    yield Architecture("SeedOssForCausalLM", decoder, names.LLAMA)
    yield from headless("SeedOss", decoder, names.LLAMA)
