"""The attention back end `flash-attn`: the packages flash-attn (FlashAttention 2) and flash_attn_interface (3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quire.plugin import OpImpl, OpQuery, hookimpl
from quire_plugins.attention.conditions import HALVES, capability, missing, unsupported

PAGE = 256
"""FlashAttention 2 reads pages of a multiple of so many positions; 3 reads any."""


def has_third(query: OpQuery) -> bool:
    """Whether FlashAttention 3 is installed, which is for Hopper."""
    return missing("flash_attn_interface") is None and capability(query) == 90


def supports(query: OpQuery) -> str | None:
    if has_third(query):
        return unsupported(query, HALVES, 90, 256)
    reason = missing("flash_attn") or unsupported(query, HALVES, 80, 256)
    if reason is None and query.page_size % PAGE:
        reason = f"it reads pages of a multiple of {PAGE} tokens, not {query.page_size} (--page-size {PAGE})"
    return reason


def load() -> Callable[..., Any]:
    from quire_plugins.attention.flash_attention.attention import paged_attention

    return paged_attention


@hookimpl
def quire_ops() -> Iterable[OpImpl]:
    third = missing("flash_attn_interface") is None  # which has no ALiBi
    yield OpImpl(
        "flash-attn", "paged_attention", supports, load, priority=1, attention_options=() if third else ("slopes",)
    )
