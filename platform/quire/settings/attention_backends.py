"""Attention back ends by the names that vLLM gives them."""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "TRITON_ATTN": "triton",
    "TORCH_SDPA": "torch",
    "XFORMERS": "xformers",
    "FLASHINFER": "flashinfer",
    "FLASH_ATTN": "flash-attn",
}
"""vLLM's name → the name here."""


def backend_name(given: str) -> str:
    """The name here of what `--attention-backend` names; other names, as of plugins, are kept."""
    return NAMES.get(given.upper(), given)
