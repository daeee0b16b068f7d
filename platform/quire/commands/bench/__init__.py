"""`platform bench`: throughput, latency, serve, startup. Each prints a table and can write JSON."""

from __future__ import annotations

import argparse

from quire.commands.bench import offline, online, startup
from quire.records import Command

_KINDS = {
    "throughput": (offline.configure_throughput, offline.run_throughput, "many requests at once, in this process"),
    "latency": (offline.configure_latency, offline.run_latency, "one batch again and again, in this process"),
    "serve": (online.configure, online.run, "load on a running server"),
    "startup": (startup.configure, startup.run, "time until a new process answers"),
}


def _configure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, (configure, run, text) in _KINDS.items():
        kind = kinds.add_parser(name, help=text, description=text)
        kind.add_argument("--output-json", metavar="FILE", help="also write the figures here")
        configure(kind)
        kind.set_defaults(bench=run)


def _run(args: argparse.Namespace) -> int:
    return int(args.bench(args))


COMMAND = Command("bench", "measure: throughput, latency, serve, startup", _configure, _run)
