"""Command, Cohere's models: one layer norm for both branches of a block, interleaved rotary embedding, scaled logits.

Command R7B and Command A (Cohere 2) rotate only in layers with a sliding window; the others have no positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    LayerNorm,
    ParallelBlock,
    PerHead,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
    with_blocks,
)
from quire_plugins.architectures import llama


def cohere(c: Any) -> Decoder:
    norm, plain = _norm(c), llama.decoder(c)
    qk_norm = PerHead(norm) if c.use_qk_norm else None

    def block(_: int, part: Any) -> ParallelBlock:
        rope = replace(part.attn.rope, interleaved=True)
        return ParallelBlock(replace(part.attn, rope=rope, qk_norm=qk_norm), part.mlp, norm)

    return replace(with_blocks(plain, block), norm=norm, logit_scale=c.logit_scale)


def cohere2(c: Any) -> Decoder:
    norm = _norm(c)

    def block(layer: int, part: Any) -> ParallelBlock:
        window = configs.window(c, layer)
        rope = None if window is None else replace(part.attn.rope, interleaved=True)
        return ParallelBlock(replace(part.attn, rope=rope, window=window), part.mlp, norm)

    return replace(with_blocks(llama.decoder(c), block), norm=norm, logit_scale=c.logit_scale)


def _norm(c: Any) -> LayerNorm:
    return LayerNorm(c.layer_norm_eps, bias=False)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Command R and Aya (Cohere), Command R7B and Command A (Cohere 2), and the classes without a language head."""
    yield Architecture("CohereForCausalLM", cohere, names.LLAMA)
    yield Architecture("Cohere2ForCausalLM", cohere2, names.LLAMA)
    yield from headless("Cohere", cohere, names.LLAMA)
    yield from headless("Cohere2", cohere2, names.LLAMA)
