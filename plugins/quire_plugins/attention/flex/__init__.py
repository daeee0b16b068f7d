"""The attention back end `flex`: FlexAttention of torch, compiled for the scores and masks of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from quire.plugin import OpImpl, OpQuery, hookimpl
from quire_plugins.attention.conditions import missing, unsupported

OPTIONS = ("slopes", "chunk", "biases", "stripes")


def supports(query: OpQuery) -> str | None:
    return missing("triton") or unsupported(query, ("float32", "float16", "bfloat16"), 80, 256, 16)


def load() -> Callable[..., Any]:
    from quire_plugins.attention.flex.attention import FlexAttention

    return FlexAttention.compiled()


@hookimpl
def quire_ops() -> Iterable[OpImpl]:
    yield OpImpl("flex", "paged_attention", supports, load, on_request=True, attention_options=OPTIONS)
