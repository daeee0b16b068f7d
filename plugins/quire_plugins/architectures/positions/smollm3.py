"""SmolLM3: Llama in which some layers have no positions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import Architecture, Decoder, config_fields as configs, hookimpl, weight_names as names, with_blocks
from quire_plugins.architectures import llama


def decoder(c: Any) -> Decoder:
    def change(layer: int, block: Any) -> Any:
        window = configs.window(c, layer) if c.use_sliding_window else None
        rope = block.attn.rope if c.no_rope_layers[layer] else None  # the field says which layers rotate
        return replace(block, attn=replace(block.attn, rope=rope, window=window))

    return with_blocks(llama.decoder(c), change)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, named like Llama."""
    yield Architecture(name="SmolLM3ForCausalLM", decoder=decoder, names=names.LLAMA)
