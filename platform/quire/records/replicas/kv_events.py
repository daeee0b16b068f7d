"""Publishers of what changes in the prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.types.kv_events import KvEvent


@dataclass(frozen=True, kw_only=True)
class KvEventContext:
    """What a publisher is built with. settings: its keys of `--kv-events-config`. engine: number of the engine process,
    from 0; each has a publisher of its own.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: int = 0


class KvEventPublisherImpl(Protocol):
    """Sends events to other processes. Called in one thread, which is not that of the steps."""

    def publish(self, model: str, events: Sequence[KvEvent]) -> None:
        """Send what has changed in the cache of a model, in order."""
        ...

    def close(self) -> None:
        """Free what it holds; nothing is sent afterwards."""
        ...


@dataclass(frozen=True)
class KvEventPublisher:
    """A way to publish KV events, chosen by `publisher` of `--kv-events-config`.

    build: raises ConfigError for settings that are wrong. settings: the keys that it reads.
    """

    name: str
    build: Callable[[KvEventContext], KvEventPublisherImpl]
    settings: frozenset[str] = frozenset()
