"""What a server that accepts requests says of itself, for the banner at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quire.types import ModelInfo
from quire.types.adapter_info import AdapterInfo

PAGES = ("/", "/docs", "/metrics")
"""Paths that a server may have for people and monitoring: the page, the list of routes, and the metrics."""


@dataclass(frozen=True, kw_only=True)
class StartedServer:
    """A server that has started. pages: those of `PAGES` that it has. chats: models with a chat template.

    requires_key: whether clients must send an API key.
    """

    url: str
    models: Sequence[ModelInfo]
    adapters: Sequence[AdapterInfo]
    pages: frozenset[str]
    chats: frozenset[str]
    requires_key: bool


OnReady: TypeAlias = Callable[[StartedServer], None]
"""Called once, when the server accepts requests."""
