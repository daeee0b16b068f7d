"""Moves KV memory between the models of an engine process, between steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from quire.engine.elastic.decisions import resized

log = logging.getLogger(__name__)

INTERVAL_S = 0.25
"""Time between two decisions."""


class KvBalance:
    """Divides the memory of all elastic pools. For the thread that runs steps, and never during a step.

    clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pages: dict[str, Any] = {}
        self._busy_at: dict[str, float] = {}
        self._total, self._decided_at = 0, clock()

    def add(self, name: str, engine: Any) -> None:
        """Share the memory of a model's pages, if their number can change."""
        pages = getattr(engine, "kv_pages", None)
        if pages is not None:
            self._pages[name], self._busy_at[name] = pages, self._clock()
            self._total += pages.held_bytes

    def remove(self, name: str) -> None:
        """Leave a model that is closed out; the others keep what they have of its memory."""
        pages = self._pages.pop(name, None)
        if pages is not None:
            self._total -= pages.held_bytes

    def step(self, engines: Mapping[str, Any]) -> None:
        """Decide again, if it is time to."""
        now = self._clock()
        if len(self._pages) < 2 or now - self._decided_at < INTERVAL_S:
            return
        self._decided_at = now
        for name in self._pages:
            if engines[name].has_work:
                self._busy_at[name] = now
        for _ in range(2):  # what idle models give up is free at once
            states = [pages.state(name, now - self._busy_at[name]) for name, pages in self._pages.items()]
            changes = resized(states, self._total)
            for name, count in changes.items():
                self._resize(name, count)
        for pages in self._pages.values():
            pages.release()

    def _resize(self, name: str, count: int) -> None:
        pages = self._pages[name]
        log.info("the KV cache of %s has %d pages now instead of %d", name, count, pages.pool.num_pages)
        pages.resize(count)
        pages.release()
