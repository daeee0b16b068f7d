"""GLM-4: Llama with an interleaved, partly rotary embedding; the models of 2025 also have norms after each branch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    WeightsMapper,
    headless,
    hookimpl,
    weight_names as names,
    with_blocks,
)
from quire_plugins.architectures import llama

NAMES_4 = names.LLAMA | WeightsMapper(
    (("post_self_attn_layernorm", "attn_out"), ("post_mlp_layernorm", "mlp_out")),
)


def glm(c: Any) -> Decoder:
    def block(_: int, part: Any) -> Any:
        rope = replace(part.attn.rope, interleaved=True)
        return replace(part, attn=replace(part.attn, rope=rope, out_bias=False))

    return with_blocks(llama.decoder(c), block)


def glm4(c: Any) -> Decoder:
    return with_blocks(glm(c), lambda _, block: replace(block, norm_out=True))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """GLM-4 9B (GLM), GLM-4 and Z1 of 2025 (GLM-4), and the classes without a language head."""
    yield Architecture("GlmForCausalLM", glm, names.LLAMA)
    yield Architecture("Glm4ForCausalLM", glm4, NAMES_4)
    yield from headless("Glm", glm, names.LLAMA)
    yield from headless("Glm4", glm4, NAMES_4)
