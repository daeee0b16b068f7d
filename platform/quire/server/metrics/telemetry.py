"""Reports ended requests and engine statistics to metrics, exporters and plugins, outside the event loop.

A worker thread adds ended requests to the histograms in batches; a timer reads the engines' statistics. Each plugin is
notified in a thread of its own: exceptions are counted and logged, and a plugin that is slow or hangs misses the values
that do not fit in its queue without delaying the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.errors import PluginOff, QuireError
from quire.hooks.call_stats import call_plugin
from quire.hooks.calls import NotifyHook
from quire.records import Context, Registry, StatsObserver
from quire.server.accounting.ledger import UsageLedger
from quire.server.accounting.usage_metrics import UsageMetrics
from quire.server.metrics.metrics import DEFAULT_PREFIX, Metrics, Timings
from quire.server.metrics.throughput_log import ThroughputLog
from quire.server.process.plugin_threads import PluginNotifier
from quire.server.service.client_protocol import ClientProtocol
from quire.types import EngineStats, ModelInfo, RequestSummary

if TYPE_CHECKING:
    from quire.server.tracing.tracing import Tracing

log = logging.getLogger("quire.server")

HOOK = "quire_metrics_exporters"

STOP_S = 30.0
MIN_STOP_S = 1.0
"""Limits for the time that plugins have at shutdown to receive the last requests."""

WAITING_STATS, WAITING_EVENTS = 16, 4096
"""Queue lengths of a plugin: statistics of models, and ended requests."""

DRAIN_S = 5.0
"""How long plugins may take at shutdown to process their queues."""

Record = Callable[[], None] | None
"""Makes the spans of an ended request; None if it is not traced."""

Batch = list[tuple[RequestSummary, Timings, Record]]

BATCH_INTERVAL_S = 0.1
"""Requests that end within this time are reported together: waking a thread for each takes CPU time from the steps."""


class Telemetry:
    """Collects ended requests and engine statistics, and passes them on."""

    def __init__(
        self,
        client: ClientProtocol,
        registry: Registry,
        metrics: Metrics,
        throughput: ThroughputLog | None = None,
        interval_s: float = 1.0,
        tracing: Tracing | None = None,
        usage: UsageLedger | None = None,
    ) -> None:
        self.tracing = tracing
        self.usage = usage or UsageLedger(registry, UsageMetrics(DEFAULT_PREFIX, 0))
        metrics.registry.register(self.usage.metrics)
        self._client = client
        self._registry = registry
        self._metrics = metrics
        self._throughput = throughput
        self._interval_s = interval_s
        self._ended: Batch = []
        self._has_ended = asyncio.Event()
        self._exporters = [self._build(record) for record in registry.all(HOOK)]
        self._request_notifiers = _request_notifiers(registry)
        self._engine_calls: Sequence[Mapping[str, Any]] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._reporting: asyncio.Task[None] | None = None

    def _build(self, record: Any) -> PluginNotifier:
        plugin = self._registry.plugin_of(HOOK, record.name)
        context = Context(options=self._registry.options.get(plugin, {}))
        exporter: StatsObserver = call_plugin(self._registry, plugin, record.build, context)
        return PluginNotifier(plugin, partial(self._export, plugin, exporter.observe), WAITING_STATS)

    def finished(self, summary: RequestSummary, timings: Timings, record: Record = None) -> None:
        """Queue an ended request for the next batch; cheap for the caller. record: called with it, in the thread."""
        self._ended.append((summary, timings, record))
        self._has_ended.set()

    def add_model(self, info: ModelInfo) -> None:
        """Begin the metrics of a model that was loaded."""
        self._metrics.add_model(info)

    async def remove_model(self, name: str) -> None:
        """End the metrics of a model that was unloaded, after the requests that have ended are counted."""
        await self.report_finished()
        self._metrics.remove_model(name)
        self.usage.metrics.remove_model(name)
        if self._throughput is not None:
            self._throughput.forget(name)

    def start(self) -> None:
        """Start the tasks in the running event loop."""
        self._tasks = [asyncio.create_task(self._report()), asyncio.create_task(self._poll())]

    async def stop(self, timeout_s: float = STOP_S) -> None:
        """Report the remaining requests, then stop; plugins get `timeout_s`, but at least a second, as do traces."""
        begun = time.monotonic()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.report_finished()
        await asyncio.to_thread(self.usage.close, max(MIN_STOP_S, timeout_s - (time.monotonic() - begun)))
        await self.drain(min(DRAIN_S, max(MIN_STOP_S, timeout_s)))
        if self.tracing is not None:
            left_s = timeout_s - (time.monotonic() - begun)
            await self.tracing.shut_down(min(DRAIN_S, max(MIN_STOP_S, left_s)))

    @property
    def _notifiers(self) -> list[PluginNotifier]:
        return [*self._request_notifiers, *self._exporters, *self.usage.notifiers]

    async def drain(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for all plugins together to process their queues."""
        busy = [notifier for notifier in self._notifiers if not notifier.drain(0)]
        until = time.monotonic() + timeout_s
        while busy and time.monotonic() < until:
            await asyncio.sleep(0.01)
            busy = [notifier for notifier in busy if not notifier.drain(0)]
        for notifier in busy:
            log.warning("plugin %r is still busy with notifications; not waiting for it", notifier.plugin)

    async def report_finished(self) -> None:
        """Return when all ended requests are in the metrics and in the queues of the plugins."""
        while self._reporting is not None or self._ended:
            if self._reporting is None:
                self._has_ended.clear()
                ended, self._ended = self._ended, []
                self._reporting = asyncio.create_task(self._report_in_thread(ended))
            await asyncio.shield(self._reporting)

    async def _report_in_thread(self, ended: Batch) -> None:
        try:
            await asyncio.to_thread(self._observe, ended)
        finally:
            # Not in a callback of the task: between the end of the task and the callback, `report_finished` would wait
            # for a finished task, which never yields to the event loop.
            self._reporting = None

    async def refresh(self) -> None:
        """Read the statistics of the engines now."""
        try:
            stats, self._engine_calls = await self._client.stats_and_plugin_calls()
        except QuireError as error:
            log.debug("no statistics: %s", error)
            return
        for model_stats in stats:
            self._metrics.observe_engine(model_stats)
            if self._throughput is not None:
                self._throughput.observe(model_stats)
            for exporter in self._exporters:
                exporter.put(model_stats)
        self._metrics.observe_plugins(self.plugin_calls())

    def plugin_calls(self) -> list[dict[str, Any]]:
        """Per plugin, in this process and the engine process together: calls, errors, seconds, switched-off functions,
        and the number of dropped notifications."""
        own = self._registry.counter.snapshot() if self._registry.counter is not None else []
        sums: dict[str, dict[str, Any]] = {}
        for row in (*own, *self._engine_calls):
            entry = sums.setdefault(row["plugin"], _no_calls(row["plugin"]))
            for name in ("calls", "errors", "seconds"):
                entry[name] += row[name]
            entry["off"] = sorted({*entry["off"], *row.get("off", ())})
        for notifier in self._notifiers:
            if notifier.dropped:
                sums.setdefault(notifier.plugin, _no_calls(notifier.plugin))["dropped"] += notifier.dropped
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
            await self._has_ended.wait()
            await asyncio.sleep(BATCH_INTERVAL_S)
            await self.report_finished()

    def _observe(self, batch: Batch) -> None:
        for summary, timings, record in batch:
            self._metrics.finished(summary, timings)
            if record is not None:
                record()
            for notifier in self._request_notifiers:
                notifier.put(summary)

    def _export(self, plugin: str, observe: Callable[[EngineStats], None], stats: EngineStats) -> None:
        try:
            call_plugin(self._registry, plugin, observe, stats)
        except PluginOff:
            pass  # logged once when it was switched off
        except Exception:
            log.exception("the metrics exporter of plugin %r failed", plugin)


def _no_calls(plugin: str) -> dict[str, Any]:
    return {"plugin": plugin, "calls": 0, "errors": 0, "seconds": 0.0, "off": [], "dropped": 0}


def _request_notifiers(registry: Registry) -> list[PluginNotifier]:
    """A notifier for each plugin with the hook for ended requests."""
    event = registry.request_finished
    if not isinstance(event, NotifyHook):  # a registry built by hand, as in tests
        return [PluginNotifier("?", event, WAITING_EVENTS)]
    return [PluginNotifier(one.callers[0][0], one, WAITING_EVENTS) for one in event.each()]
