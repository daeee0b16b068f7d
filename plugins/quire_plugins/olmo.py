"""OLMo 2: Llama with norms after each branch, none before, and one norm over all heads of queries and keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire import Architecture, hookimpl
from quire_models import Decoder, Norm, names, with_attention, with_blocks
from quire_plugins import llama


def decoder(c: Any) -> Decoder:
    """`Olmo2Config` as parts."""
    normed = with_attention(llama.decoder(c), qk_norm=Norm(c.rms_norm_eps), qk_norm_wide=True)
    return with_blocks(normed, lambda _, block: replace(block, norm_in=False, norm_out=True))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """One architecture."""
    yield Architecture(name="Olmo2ForCausalLM", decoder=decoder, names=names.LLAMA | names.SANDWICH)
