"""A family's case with heads for eight ranks, which cannot divide them evenly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from family_case import FamilyCase

HEADS, KV_HEADS, WIDTH = 12, 3, 96

SIZES: Mapping[str, int] = {
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "mamba_n_heads", "mamba_num_heads"), HEADS),
    **dict.fromkeys(("kv_n_heads", "num_kv_heads"), KV_HEADS),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), WIDTH),
    "mamba_d_ssm": 2 * WIDTH,
    "linear_num_heads": 9,
}
"""What settings of a case are here, whatever they are there."""

TIMES = {"linear_num_key_heads": 4, "linear_num_value_heads": 4}
"""Settings that are so many times as large."""

HEAD_DIMS = {"HeliumForCausalLM": WIDTH // HEADS, "Zamba2ForCausalLM": 2 * WIDTH // HEADS}
"""Of architectures whose heads divide a row, or two side by side."""


def wide(case: FamilyCase) -> FamilyCase:
    """Twelve heads in place of four, with three key-value heads where there may be fewer."""
    kv_heads = HEADS if case.config.get("num_key_value_heads") == 4 else KV_HEADS
    sizes = {"num_attention_heads": HEADS, "num_key_value_heads": kv_heads, "hidden_size": WIDTH}
    config = {**_resized(case.config), **sizes}
    if case.architecture in HEAD_DIMS:
        config["head_dim"] = HEAD_DIMS[case.architecture]
    return replace(case, config=config)


def _resized(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _size(name, value) for name, value in config.items()}


def _size(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _resized(value)
    return value * TIMES[name] if name in TIMES else SIZES.get(name, value)
