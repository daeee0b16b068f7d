"""The attention back end `flashinfer`: kernels of the package flashinfer-python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quire.plugin import OpImpl, OpQuery, hookimpl
from quire_plugins.attention.conditions import HALVES, missing, unsupported

DIMS = (64, 128, 256)
"""Head dimensions of its kernels."""


def supports(query: OpQuery) -> str | None:
    reason = missing("flashinfer") or unsupported(query, HALVES, 75, max(DIMS), min(DIMS))
    others = [dim for dim in query.head_dims if dim not in DIMS]
    return reason or (f"head dimensions are {DIMS}, not {others[0]}" if others else None)


def load() -> Callable[..., Any]:
    from quire_plugins.attention.flashinfer.attention import FlashInferAttention

    return FlashInferAttention()


@hookimpl
def quire_ops() -> Iterable[OpImpl]:
    yield OpImpl("flashinfer", "paged_attention", supports, load, priority=1)
