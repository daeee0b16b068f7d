"""The setting --kv-events-config: whether changes of the prefix cache are published, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.errors import ConfigError

if TYPE_CHECKING:
    from quire.records import Registry

FLAG = "--kv-events-config"
PUBLISHERS = "quire_kv_event_publishers"
NO_PUBLISHER = "null"
"""vLLM's name for no publisher."""


@dataclass(frozen=True, kw_only=True)
class KvEventsConfig:
    """Named as in vLLM. max_queue_size: events that may wait to be published. settings: of the publisher."""

    publisher: str
    max_queue_size: int = 100_000
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_registry(cls, given: Mapping[str, Any], registry: Registry) -> KvEventsConfig | None:
        """given: the JSON object of the flag; None if it publishes nothing. Raises ConfigError."""
        known = {name: record.settings for name, record in registry.by_hook(PUBLISHERS).items()}
        rest = dict(given)
        enabled = rest.pop("enable_kv_cache_events", False)
        publisher = rest.pop("publisher", None) or ("zmq" if enabled else NO_PUBLISHER)
        if not isinstance(enabled, bool):
            raise ConfigError(f"`enable_kv_cache_events` of {FLAG} must be true or false; got {enabled!r:.80}.")
        if publisher != NO_PUBLISHER and publisher not in known:
            names = ", ".join(sorted({*known, NO_PUBLISHER}))
            raise ConfigError(f"`publisher` of {FLAG} must be one of {names}; got {publisher!r:.80}.")
        size = rest.pop("max_queue_size", cls.max_queue_size)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"`max_queue_size` of {FLAG} must be a number above 0; got {size!r:.80}.")
        for key in rest:
            if key not in known.get(publisher, frozenset().union(*known.values())):
                raise ConfigError(f"{FLAG} has the unknown key {key!r:.80}.")
        if not enabled or publisher == NO_PUBLISHER:
            return None
        return cls(publisher=publisher, max_queue_size=size, settings=rest)
