"""Finds and builds the publisher that --kv-events-config names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.engine.kv_events.sender import EventSender
from quire.hooks.call_stats import call_plugin
from quire.records import KvEventContext, KvEventPublisher, Registry
from quire.settings.kv_events_config import PUBLISHERS, KvEventsConfig


def build_sender(given: Mapping[str, Any], registry: Registry, engine: int) -> EventSender | None:
    """A sender of KV events. given: the JSON object of the flag. engine: number of the engine process.

    None if nothing is to be published. Raises ConfigError.
    """
    config = KvEventsConfig.from_registry(given, registry)
    if config is None:
        return None
    record: KvEventPublisher = registry.by_hook(PUBLISHERS)[config.publisher]
    plugin = registry.plugin_of(PUBLISHERS, record.name)
    context = KvEventContext(options=registry.options.get(plugin, {}), settings=dict(config.settings), engine=engine)
    publisher = call_plugin(registry, plugin, record.build, context)
    return EventSender(publisher, registry, plugin, config.max_queue_size)
