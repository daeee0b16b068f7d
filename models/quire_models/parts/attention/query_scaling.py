"""Queries that grow with their position: a frozen description that imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QueryScaling:
    """Queries at position p times 1 + factor · log(1 + ⌊(p + offset) / floor⌋), after the rotary embedding.

    It sharpens attention over long contexts (Llama 4: attn_scale, floor_scale, offset 1; Ministral 3: llama_4_scaling).
    """

    factor: float
    floor: float
    offset: int = 0
