"""OLMo 2: Llama with norms after each branch instead of before, and one norm over all heads of queries and keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import Architecture, Decoder, RMSNorm, hookimpl, weight_names as names, with_attention, with_blocks
from quire_plugins.architectures import llama


def decoder(c: Any) -> Decoder:
    normed = with_attention(llama.decoder(c), qk_norm=RMSNorm(c.rms_norm_eps), qk_norm_wide=True)
    return with_blocks(normed, lambda _, block: replace(block, norm_in=False, norm_out=True))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`Olmo2ForCausalLM`, the only architecture."""
    yield Architecture(name="Olmo2ForCausalLM", decoder=decoder, names=names.LLAMA | names.PRE_AND_POST_NORM)
