"""Copies of decoders with other blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quire_models.parts.decoder import BlockPart, Decoder
from quire_models.parts.state import kv_shape


def with_blocks(decoder: Decoder, change: Callable[[int, Any], BlockPart]) -> Decoder:
    """A copy of the decoder with each block replaced by change(index, block)."""
    return replace(decoder, blocks=tuple(change(i, block) for i, block in enumerate(decoder.blocks)))


def with_attention(decoder: Decoder, **changes: Any) -> Decoder:
    """A copy of the decoder with these fields changed in every `attn` that stores keys and values."""

    def change(_: int, block: Any) -> BlockPart:
        attn: Any = getattr(block, "attn", None)
        changed: BlockPart = replace(block, attn=replace(attn, **changes)) if any(kv_shape(attn)) else block
        return changed

    return with_blocks(decoder, change)
