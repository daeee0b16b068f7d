"""The attention back end `xformers`: memory-efficient attention of the package xformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quire.plugin import OpImpl, OpQuery, hookimpl
from quire_plugins.attention.conditions import missing, unsupported


def supports(query: OpQuery) -> str | None:
    return missing("xformers") or unsupported(query, ("float32", "float16", "bfloat16"), 75, 512)


def load() -> Callable[..., Any]:
    from quire_plugins.attention.xformers.attention import paged_attention

    return paged_attention


@hookimpl
def quire_ops() -> Iterable[OpImpl]:
    yield OpImpl("xformers", "paged_attention", supports, load, priority=1)
