"""Engine statistics as StatsD gauges over UDP (https://github.com/statsd/statsd/blob/master/docs/metric_types.md)."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import asdict

from quire.plugin import Context, EngineStats, MetricsExporter, Option, hookimpl


class StatsD:
    """Sends one datagram per model and observation; the next one follows a second later if one is lost."""

    def __init__(self, context: Context) -> None:
        self._address = (context.options["host"], context.options["port"])
        self._prefix = context.options["prefix"]

    def observe(self, stats: EngineStats) -> None:
        model = re.sub(r"\W+", "_", stats.model)
        numbers = {name: value for name, value in asdict(stats).items() if isinstance(value, int)}
        lines = [f"{self._prefix}.{model}.{name}:{value}|g" for name, value in numbers.items()]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.sendto("\n".join(lines).encode(), self._address)


@hookimpl
def quire_options() -> Iterable[Option]:
    """The address of the server, and a prefix of the names."""
    yield Option("host", str, "127.0.0.1", "host of the StatsD server")
    yield Option("port", int, 8125, "its UDP port")
    yield Option("prefix", str, "quire", "first part of every name")


@hookimpl
def quire_metrics_exporters() -> Iterable[MetricsExporter]:
    """One exporter, built with the options."""
    yield MetricsExporter("statsd", StatsD)
