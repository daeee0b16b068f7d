"""Bamba: Llama with Mamba-2 instead of attention in most layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import Architecture, Decoder, hookimpl, with_blocks
from quire_models.parts.recurrent.mamba import GatedNorm
from quire_plugins.architectures import llama
from quire_plugins.architectures.hybrid import mamba_fields


def decoder(c: Any) -> Decoder:
    mamba = mamba_fields.mamba2(c, GatedNorm(c.rms_norm_eps, c.mamba_n_groups))

    def change(layer: int, block: Any) -> Any:
        return block if c.layers_block_type[layer] == "full_attention" else replace(block, attn=mamba)

    return with_blocks(llama.decoder(c), change)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`BambaForCausalLM`, the only architecture."""
    yield Architecture(name="BambaForCausalLM", decoder=decoder, names=mamba_fields.NAMES)
