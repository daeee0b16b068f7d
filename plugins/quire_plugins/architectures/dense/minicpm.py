"""MiniCPM 1, 2 and 4 (dense): Llama with scaled embeddings, residuals and logits.

transformers has no class for the config, whose checkpoints bring code; its fields are read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_blocks,
)
from quire_plugins.architectures import llama


def decoder(c: Any) -> Decoder:
    scale = configs.optional(c, "scale_depth", 1.0) / c.num_hidden_layers**0.5
    scaled = with_blocks(llama.decoder(c), lambda _, block: replace(block, residual_scale=scale))
    return replace(
        scaled,
        tied=configs.optional(c, "tie_word_embeddings", True),
        embed_scale=configs.optional(c, "scale_emb", 1.0),
        logit_scale=configs.optional(c, "dim_model_base", c.hidden_size) / c.hidden_size,
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`MiniCPMForCausalLM`, the only architecture."""
    yield Architecture("MiniCPMForCausalLM", decoder, names.LLAMA)
