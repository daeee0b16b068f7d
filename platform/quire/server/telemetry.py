"""Tells metrics, exporters and plugins what happened, beside the event loop.

Ended requests are passed to the histograms in batches by a worker thread; engine statistics are read by a timer.
Plugins are notified in a thread for each: one that raises is counted and logged, one that is slow or hangs misses
what does not fit in its queue, and no other waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from quire.calls import Event
from quire.counting import call_plugin
from quire.errors import PluginOff, QuireError
from quire.records import Context, ObservesStats, Registry
from quire.server.engines import Client
from quire.server.metrics import Metrics, Timings
from quire.server.plugin_threads import Outlet
from quire.server.throughput_log import ThroughputLog
from quire.types import EngineStats, RequestSummary

log = logging.getLogger("quire.server")

HOOK = "quire_metrics_exporters"

STOP_S = 30.0
LEAST_STOP_S = 1.0
"""How long plugins may take at the end to take in the last requests."""

WAITING_STATS, WAITING_EVENTS = 16, 4096
"""What may wait for a plugin that is slow: statistics of models, and ended requests."""

DRAIN_S = 5.0
"""How long plugins have at the end to take in what they were notified of."""

Batch = list[tuple[RequestSummary, Timings]]

TOGETHER_S = 0.1
"""Requests that end within this time are told of together: waking a thread for each takes a core from the steps."""


class Telemetry:
    """Figures of requests and engines on their way out."""

    def __init__(
        self,
        client: Client,
        registry: Registry,
        metrics: Metrics,
        throughput: ThroughputLog | None = None,
        interval_s: float = 1.0,
    ) -> None:
        self._client = client
        self._registry = registry
        self._metrics = metrics
        self._throughput = throughput
        self._interval_s = interval_s
        self._ended: list[tuple[RequestSummary, Timings]] = []
        self._news = asyncio.Event()
        self._exporters = [self._build(record) for record in registry.all(HOOK)]
        self._listeners = _listeners(registry)
        self._host_calls: Sequence[Mapping[str, Any]] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._telling: asyncio.Task[None] | None = None

    def _build(self, record: Any) -> Outlet:
        plugin = self._registry.plugin_of(HOOK, record.name)
        context = Context(options=self._registry.options.get(plugin, {}))
        exporter: ObservesStats = call_plugin(self._registry, plugin, record.build, context)
        return Outlet(plugin, partial(self._export, plugin, exporter.observe), WAITING_STATS)

    def finished(self, summary: RequestSummary, timings: Timings) -> None:
        """A request ended. Costs the caller nothing but an append."""
        self._ended.append((summary, timings))
        self._news.set()

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._tasks = [asyncio.create_task(self._report()), asyncio.create_task(self._poll())]

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Report what is left, then end; plugins are given `timeout_s`, or a second if it is less."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tell()
        await self.drain(min(DRAIN_S, max(LEAST_STOP_S, timeout_s)))

    async def drain(self, timeout_s: float) -> None:
        """Wait until plugins were notified of everything, but no longer than this, all together."""
        busy = [outlet for outlet in (*self._listeners, *self._exporters) if not outlet.drain(0)]
        until = time.monotonic() + timeout_s
        while busy and time.monotonic() < until:
            await asyncio.sleep(0.01)
            busy = [outlet for outlet in busy if not outlet.drain(0)]
        for outlet in busy:
            log.warning("plugin %s is still busy with what it was notified of; going on without it", outlet.plugin)

    async def tell(self) -> None:
        """Return when all requests that have ended are in the metrics, and on their way to plugins."""
        while self._telling is not None or self._ended:
            if self._telling is None:
                self._news.clear()
                ended, self._ended = self._ended, []
                self._telling = asyncio.create_task(self._tell_beside(ended))
            await asyncio.shield(self._telling)

    async def _tell_beside(self, ended: Batch) -> None:
        try:
            await asyncio.to_thread(self._tell, ended)
        finally:
            # Here, and not in a callback of the task: between its end and a callback, `tell` would wait for a task that
            # is done, which gives the event loop no turn, and so for ever.
            self._telling = None

    async def refresh(self) -> None:
        """Read the engines' statistics now."""
        try:
            stats, self._host_calls = await self._client.figures()
        except QuireError as error:
            log.debug("no statistics: %s", error)
            return
        for figures in stats:
            self._metrics.observe_engine(figures)
            if self._throughput is not None:
                self._throughput.observe(figures)
            for exporter in self._exporters:
                exporter.put(figures)
        self._metrics.observe_plugins(self.plugin_calls())

    def plugin_calls(self) -> list[dict[str, Any]]:
        """Calls, errors and seconds per plugin, in this process and where the models run; which of its functions are
        off, and how much it was not notified of."""
        own = self._registry.counter.snapshot() if self._registry.counter is not None else []
        sums: dict[str, dict[str, Any]] = {}
        for row in (*own, *self._host_calls):
            entry = sums.setdefault(row["plugin"], _no_calls(row["plugin"]))
            for name in ("calls", "errors", "seconds"):
                entry[name] += row[name]
            entry["off"] = sorted({*entry["off"], *row.get("off", ())})
        for outlet in (*self._listeners, *self._exporters):
            if outlet.dropped:
                sums.setdefault(outlet.plugin, _no_calls(outlet.plugin))["dropped"] += outlet.dropped
        return list(sums.values())

    async def _poll(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception:
                log.exception("reading statistics failed")
            await asyncio.sleep(self._interval_s)

    async def _report(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(TOGETHER_S)
            await self.tell()

    def _tell(self, batch: Batch) -> None:
        for summary, timings in batch:
            self._metrics.finished(summary, timings)
            for listener in self._listeners:
                listener.put(summary)

    def _export(self, plugin: str, observe: Callable[[EngineStats], None], figures: EngineStats) -> None:
        try:
            call_plugin(self._registry, plugin, observe, figures)
        except PluginOff:
            pass  # which the log says once
        except Exception:
            log.exception("the metrics exporter of plugin %r failed", plugin)


def _no_calls(plugin: str) -> dict[str, Any]:
    return {"plugin": plugin, "calls": 0, "errors": 0, "seconds": 0.0, "off": [], "dropped": 0}


def _listeners(registry: Registry) -> list[Outlet]:
    """One for each plugin that wants to know which requests have ended."""
    event = registry.request_finished
    if not isinstance(event, Event):  # a registry made by hand
        return [Outlet("?", event, WAITING_EVENTS)]
    return [Outlet(one.callers[0][0], one, WAITING_EVENTS) for one in event.each()]
