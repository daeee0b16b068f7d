"""MiniCPM3: latent attention, scaled embeddings, residual branches and logits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import Architecture, Decoder, hookimpl, weight_names as names, with_blocks
from quire_plugins.architectures.latent import deepseek, latent_attention


def decoder(c: Any) -> Decoder:
    scale = c.scale_depth / math.sqrt(c.num_hidden_layers)
    scaled = with_blocks(deepseek.dense(c, interleaved=False), lambda _, block: replace(block, residual_scale=scale))
    return replace(scaled, embed_scale=float(c.scale_emb), logit_scale=c.dim_model_base / c.hidden_size)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, with compressed queries or without."""
    yield Architecture(name="MiniCPM3ForCausalLM", decoder=decoder, names=names.LLAMA | latent_attention.NAMES)
