"""The listener of a model's page pool: makes an event of each change of the prefix cache."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from quire.records import Registry
from quire.types import WeightedAdapter
from quire.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

if TYPE_CHECKING:
    from quire.engine.scheduler.seq import Seq

log = logging.getLogger(__name__)

Put = Callable[[str, KvEvent], bool]
"""Queues an event of a model; False if the queue is full."""


class PageListener(Protocol):
    """Hears of every change of a page pool's prefix cache, in the thread of the steps."""

    def stored(self, seq: Seq, index: int) -> None:
        """A page of a seq is in the cache. index: in its table."""
        ...

    def removed(self, page_hash: bytes) -> None:
        """A page is not in the cache any more."""
        ...

    def cleared(self) -> None:
        """No page is in the cache any more."""
        ...


class PageLog:
    """What `PagePool` and `PageTables` report of one model (a `PageListener`).

    When the queue is full, events are dropped until it has room. What was published before would then be wrong, so that
    the next event is `AllBlocksCleared`: a router may know too little, but nothing false.
    """

    @classmethod
    def from_registry(cls, registry: Registry, model: str, page_size: int) -> PageLog | None:
        """None if no KV events are published."""
        return None if registry.put_kv_event is None else cls(model, page_size, registry.put_kv_event)

    def __init__(self, model: str, page_size: int, put: Put) -> None:
        self._model, self._page_size, self._put = model, page_size, put
        self._has_dropped = True  # a new process has an empty cache, whatever one before it had

    def stored(self, seq: Seq, index: int) -> None:
        """A page of a seq is in the cache. index: in its table."""
        size, request = self._page_size, seq.group.request
        start = index * size
        name = _name(request.adapters)
        extra = _extra_keys(seq, start, start + size, name)
        self._report(
            BlockStored(
                block_hashes=[_number(seq.page_hashes[index])],
                parent_block_hash=_number(seq.page_hashes[index - 1]) if index else None,
                token_ids=seq.tokens[start : start + size],
                block_size=size,
                lora_id=None if name is None else zlib.crc32(name.encode("utf-8", "surrogatepass")),
                lora_name=name,
                extra_keys=None if extra is None else [extra],
            )
        )

    def removed(self, page_hash: bytes) -> None:
        """A page is not in the cache any more."""
        self._report(BlockRemoved(block_hashes=[_number(page_hash)]))

    def cleared(self) -> None:
        """No page is in the cache any more."""
        self._report(AllBlocksCleared())

    def _report(self, event: KvEvent) -> None:
        if self._has_dropped:
            if not self._put(self._model, AllBlocksCleared()):
                return
            self._has_dropped = False
        if not self._put(self._model, event):
            self._has_dropped = True
            log.warning("KV events of %s are dropped, because their publisher is too slow", self._model)


def _number(page_hash: bytes) -> int:
    return int.from_bytes(page_hash[-8:], "big")


def _name(adapters: tuple[WeightedAdapter, ...]) -> str | None:
    names = (use.ref.name if use.weight == 1.0 else f"{use.ref.name}:{use.weight:g}" for use in adapters)
    return "+".join(names) or None


def _extra_keys(seq: Seq, start: int, end: int, name: str | None) -> list[Any] | None:
    """What tells the block at positions start … end - 1 from others with its tokens."""
    request = seq.group.request
    found: list[Any] = [
        (item.digest, item.start - start)
        for item in request.prompt.media
        if item.start < end and item.start + item.length > start
    ]
    if name is not None:
        found.append(name)
    if start == 0 and request.cache_salt is not None:
        found.append(request.cache_salt)
    return found or None
