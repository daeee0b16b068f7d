"""`platform bench` and its kinds. Each prints a table and can write JSON."""

from __future__ import annotations

import argparse
import sys

from quire.commands.bench import compare, embed, offline, online, pictures, profile, startup, structured, sweep
from quire.commands.remote import RemoteError
from quire.records import Command

_KINDS = {
    "throughput": (offline.configure_throughput, offline.run_throughput, "many requests at once, in this process"),
    "latency": (offline.configure_latency, offline.run_latency, "one batch again and again, in this process"),
    "embed": (embed.configure, embed.run, "many prompts through a pooler, in this process"),
    "pictures": (pictures.configure, pictures.run, "prompts with pictures, beside text and the tower alone"),
    "structured": (structured.configure, structured.run, "constrained answers, and free ones beside hostile schemas"),
    "profile": (profile.configure, profile.run, "where the time goes, and how far from the machine's roof it is"),
    "serve": (online.configure, online.run, "load on a running server"),
    "sweep": (sweep.configure, sweep.run, "throughput and latency of a running server against the load on it"),
    "compare": (compare.configure, compare.run, "two running servers, the same workload in turns"),
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
    """Status 2 is for settings that cannot be, 1 for a server that did not do what was measured."""
    try:
        return int(args.bench(args))
    except RemoteError as error:
        print(f"platform: error: {error.message}", file=sys.stderr)
        return 1


COMMAND = Command("bench", f"measure: {', '.join(_KINDS)}", _configure, _run)
