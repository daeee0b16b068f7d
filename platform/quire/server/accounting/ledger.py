"""Takes the records of ended requests: counts them in metrics, has them written, and passes them to plugins."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from quire.hooks.calls import NotifyHook
from quire.records import Registry
from quire.server.accounting.usage_metrics import UsageMetrics
from quire.server.accounting.writer import WriterThread
from quire.server.process.plugin_threads import PluginNotifier
from quire.types import UsageRecord

log = logging.getLogger("quire.server")

MAX_WAIT_S = 2.0
"""How long an answer waits for its record to be stored. After one such wait no answer waits until the writer works."""

WAITING_BATCHES = 4096
"""Batches of records that wait for a plugin."""


@dataclass(frozen=True, slots=True)
class _Waiter:
    """An answer that waits for the first `number` calls of `put` to be stored."""

    number: int
    stored: asyncio.Future[None] = field(compare=False)


class UsageLedger:
    """The one place to which ended requests are reported. Without a writer nothing is stored.

    Records reach plugins when they are stored, or at once if nothing is stored.
    """

    def __init__(self, registry: Registry, metrics: UsageMetrics) -> None:
        self.metrics = metrics
        self.notifiers = _notifiers(registry)
        self._writer: WriterThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: deque[_Waiter] = deque()
        self._is_late = False

    def write_with(self, writer: WriterThread) -> None:
        """Store records with a writer that calls `on_written`."""
        self._writer = writer

    def add(self, records: Sequence[UsageRecord]) -> None:
        """Account for ended requests. On the event loop; cheap."""
        for record in records:
            self.metrics.add(record)
        if self._writer is not None:
            self._writer.put(records)
        else:
            self._notify(records)

    async def stored(self) -> None:
        """Return when everything added so far outlives this process, or after `MAX_WAIT_S`.

        An answer waits for this before its last bytes, so that what a client has received whole is in the accounts.
        """
        writer = self._writer
        if writer is None or self._is_late:
            return
        self._loop = asyncio.get_running_loop()
        waiter = _Waiter(writer.num_put, self._loop.create_future())
        self._waiters.append(waiter)
        if writer.num_done >= waiter.number:  # it was written before it could see the waiter
            self._wake()
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await waiter.stored
        except TimeoutError:
            self._is_late = True
            log.warning("the database of usage is slow: answers do not wait for it until it has recovered")

    def on_written(self, records: Sequence[UsageRecord]) -> None:
        """In the writer's thread: these are stored now."""
        if self._loop is not None and (self._waiters or self._is_late):
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._wake)
        self._notify(records)

    def _wake(self) -> None:
        assert self._writer is not None
        self._is_late = False
        while self._waiters and self._waiters[0].number <= self._writer.num_done:
            stored = self._waiters.popleft().stored
            if not stored.done():
                stored.set_result(None)

    def _notify(self, records: Sequence[UsageRecord]) -> None:
        for notifier in self.notifiers:
            notifier.put(tuple(records))

    def close(self, timeout_s: float) -> None:
        """Write what waits. Blocks for at most `timeout_s`."""
        if self._writer is not None:
            self._writer.close(timeout_s)


def _notifiers(registry: Registry) -> list[PluginNotifier]:
    """A notifier for each plugin with the hook for usage."""
    event = registry.usage_recorded
    if not isinstance(event, NotifyHook):  # a registry built by hand, as in tests
        return [PluginNotifier("?", event, WAITING_BATCHES)]
    return [PluginNotifier(one.callers[0][0], one, WAITING_BATCHES) for one in event.each()]
