"""Passes the events of all models of a process to a publisher, in a thread beside the steps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import sleep

from quire.errors import QuireError
from quire.hooks.call_stats import call_plugin
from quire.records import KvEventPublisherImpl, Registry
from quire.types.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

log = logging.getLogger(__name__)

PAUSE_S = 0.005
"""For so long events are collected before they are sent together: a wake-up for each page would disturb the steps."""

CLOSE_S = 2.0
"""Longest wait for the last events to be sent."""

Item = tuple[str, KvEvent]


class EventSender:
    """A queue of events, and the thread that empties it. max_queued: events that may wait for the publisher."""

    def __init__(self, publisher: KvEventPublisherImpl, registry: Registry, plugin: str, max_queued: int) -> None:
        self._publisher, self._registry, self._plugin, self._max_queued = publisher, registry, plugin, max_queued
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def put(self, model: str, event: KvEvent) -> bool:
        """Queue an event; False if there is no room. Any thread may call it."""
        if self._queue.qsize() >= self._max_queued:
            return False
        self._queue.put((model, event))
        return True

    def close(self) -> None:
        """Send what is queued, for a limited time, and close the publisher."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        is_open = True
        while is_open:
            items = [self._queue.get()]
            sleep(PAUSE_S)
            try:
                while True:
                    items.append(self._queue.get_nowait())
            except Empty:
                pass
            is_open = None not in items
            for model, events in _by_model([item for item in items if item is not None]):
                self._call(self._publisher.publish, model, merged(events))
        self._call(self._publisher.close)

    def _call(self, function: object, *args: object) -> None:
        try:
            call_plugin(self._registry, self._plugin, function, *args)  # type: ignore[arg-type]
        except QuireError as error:
            log.error("KV events were not published: %s", error)


def _by_model(items: Sequence[Item]) -> Sequence[tuple[str, list[KvEvent]]]:
    found: dict[str, list[KvEvent]] = {}
    for model, event in items:
        found.setdefault(model, []).append(event)
    return list(found.items())


def merged(events: Sequence[KvEvent]) -> list[KvEvent]:
    """Fewer events for the changes of `events`: blocks that follow each other, and removals in a row, are one event."""
    runs: list[list[KvEvent]] = []
    for event in events:
        if runs and _continues(runs[-1][-1], event):
            runs[-1].append(event)
        else:
            runs.append([event])
    return [_joined(run) for run in runs]


def _continues(last: KvEvent, event: KvEvent) -> bool:
    if isinstance(event, BlockStored) and isinstance(last, BlockStored):
        return event.parent_block_hash == last.block_hashes[-1]
    return type(event) is type(last) and not isinstance(event, BlockStored)


def _joined(run: Sequence[KvEvent]) -> KvEvent:
    first = run[0]
    if len(run) == 1 or isinstance(first, AllBlocksCleared):
        return first
    hashes = [number for event in run for number in getattr(event, "block_hashes")]  # noqa: B009
    if isinstance(first, BlockRemoved):
        return BlockRemoved(block_hashes=hashes)
    stored = [event for event in run if isinstance(event, BlockStored)]
    extra = [key for event in stored for key in event.extra_keys or [None]]
    return replace(
        first,
        block_hashes=hashes,
        token_ids=[token for event in stored for token in event.token_ids],
        extra_keys=extra if any(extra) else None,
    )
