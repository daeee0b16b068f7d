"""Tells metrics, exporters and plugins what happened, beside the event loop.

Ended requests are passed to `quire_request_finished` and the histograms in batches by a worker thread;
engine statistics are read by a timer. A plugin that raises is counted and logged, nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.counting import call_plugin
from quire.errors import QuireError
from quire.records import Context, ObservesStats, Registry
from quire.server.engines import Client
from quire.server.metrics import Metrics, Timings
from quire.server.throughput_log import ThroughputLog
from quire.types import EngineStats, RequestSummary

log = logging.getLogger("quire.server")

HOOK = "quire_metrics_exporters"

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
        self._host_calls: Sequence[Mapping[str, Any]] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._telling: asyncio.Task[None] | None = None

    def _build(self, record: Any) -> tuple[str, ObservesStats]:
        plugin = self._registry.plugin_of(HOOK, record.name)
        context = Context(options=self._registry.options.get(plugin, {}))
        return plugin, call_plugin(self._registry, plugin, record.build, context)

    def finished(self, summary: RequestSummary, timings: Timings) -> None:
        """A request ended. Costs the caller nothing but an append."""
        self._ended.append((summary, timings))
        self._news.set()

    def start(self) -> None:
        """Begin to work, in the running event loop."""
        self._tasks = [asyncio.create_task(self._report()), asyncio.create_task(self._poll())]

    async def stop(self) -> None:
        """Report what is left, then end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tell()

    async def tell(self) -> None:
        """Return when everybody was told of all requests that have ended."""
        while self._telling is not None or self._ended:
            if self._telling is None:
                self._news.clear()
                ended, self._ended = self._ended, []
                self._telling = asyncio.create_task(asyncio.to_thread(self._tell, ended))
                self._telling.add_done_callback(self._told)
            await asyncio.shield(self._telling)

    def _told(self, _: object) -> None:
        self._telling = None

    async def refresh(self) -> None:
        """Read the engines' statistics now."""
        try:
            stats, self._host_calls = await self._client.figures()
        except QuireError as error:
            log.debug("no statistics: %s", error)
            return
        if self._exporters:  # strangers' code, which may wait for something
            await asyncio.to_thread(self._observe, stats)
        else:
            self._observe(stats)

    def plugin_calls(self) -> list[dict[str, Any]]:
        """Calls, errors and seconds per plugin, in this process and where the models run."""
        own = self._registry.counter.snapshot() if self._registry.counter is not None else []
        sums: dict[str, dict[str, Any]] = {}
        for row in (*own, *self._host_calls):
            entry = sums.setdefault(row["plugin"], {"plugin": row["plugin"], "calls": 0, "errors": 0, "seconds": 0.0})
            for name in ("calls", "errors", "seconds"):
                entry[name] += row[name]
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

    def _tell(self, batch: list[tuple[RequestSummary, Timings]]) -> None:
        for summary, timings in batch:
            self._metrics.finished(summary, timings)
            try:
                self._registry.request_finished(summary)
            except Exception:
                log.exception("a plugin failed to hear that request %s finished", summary.request_id)

    def _observe(self, stats: Sequence[EngineStats]) -> None:
        for figures in stats:
            self._metrics.observe_engine(figures)
            if self._throughput is not None:
                self._throughput.observe(figures)
            for plugin, exporter in self._exporters:
                self._export(plugin, exporter.observe, figures)
        self._metrics.observe_plugins(self.plugin_calls())

    def _export(self, plugin: str, observe: Callable[[EngineStats], None], figures: EngineStats) -> None:
        try:
            call_plugin(self._registry, plugin, observe, figures)
        except Exception:
            log.exception("the metrics exporter of plugin %r failed", plugin)
