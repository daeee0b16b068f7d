"""OLMo 1: Llama with layer norms without weights. OLMo 2 and 3: norms after each branch instead of before.

OLMo 2 and 3 have one norm over all heads of queries and keys; OLMo 3 has windows in three of four layers, whose rotary
embedding is not scaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    LayerNorm,
    RMSNorm,
    headless,
    hookimpl,
    weight_names as names,
    with_attention,
    with_blocks,
)
from quire_plugins.architectures import llama

NAMES = names.LLAMA | names.PRE_AND_POST_NORM


def olmo(c: Any) -> Decoder:
    norm = LayerNorm(affine=False)
    clipped = with_attention(llama.decoder(c), clip=c.clip_qkv)
    plain = with_blocks(clipped, lambda _, block: replace(block, norm=norm))
    return replace(plain, norm=norm)


def olmo2(c: Any) -> Decoder:
    normed = with_attention(llama.decoder(c), qk_norm=RMSNorm(c.rms_norm_eps), qk_norm_wide=True)
    return with_blocks(normed, lambda _, block: replace(block, norm_in=False, norm_out=True))


def olmo3(c: Any) -> Decoder:
    return llama.with_layer_types(c, olmo2(c))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """OLMo 1, 2 and 3, and the classes without a language head that transformers has."""
    yield Architecture(name="OlmoForCausalLM", decoder=olmo, names=names.LLAMA)
    yield Architecture(name="Olmo2ForCausalLM", decoder=olmo2, names=NAMES)
    yield Architecture(name="Olmo3ForCausalLM", decoder=olmo3, names=NAMES)
    yield from headless("Olmo", olmo, names.LLAMA)
    yield from headless("Olmo2", olmo2, NAMES)
    yield from headless("Olmo3", olmo3, NAMES)
