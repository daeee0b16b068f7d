"""Conformance of publishers of KV events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.records import KvEventContext, KvEventPublisher
from quire.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from quire_testing.require import require


def check_kv_event_publisher(
    record: KvEventPublisher, *, settings: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
) -> None:
    """It reads only the settings that it names, takes events of every kind, two models, and an empty list, and closes.

    settings: with which it can be built, such as addresses. They must be usable again after `close`.
    """
    settings = settings or {}
    unknown = set(settings) - record.settings
    require(not unknown, f"{record.name} is given settings that it does not name: {', '.join(sorted(unknown))}.")
    for engine in (0, 1):
        publisher = record.build(KvEventContext(options=options or {}, settings=settings, engine=engine))
        publisher.publish("a", [])
        for model in ("a", "b"):
            publisher.publish(model, _events())
        publisher.close()


def _events() -> list[KvEvent]:
    stored = BlockStored(
        block_hashes=[2**64 - 1, 1],
        parent_block_hash=None,
        token_ids=[0, 1, 2, 3],
        block_size=2,
        lora_id=1,
        lora_name="ä",
        extra_keys=[["ä", "salt"], None],
    )
    child = BlockStored(
        block_hashes=[3], parent_block_hash=1, token_ids=[4, 5], block_size=2, lora_id=None, lora_name=None
    )
    return [AllBlocksCleared(), stored, child, BlockRemoved(block_hashes=[3])]
