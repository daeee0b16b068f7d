"""`platform plugins`: what is installed, what is loaded, and what each plugin brings. Imports no torch."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from quire.records import Command, PluginInfo
from quire.registry import listing


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _brings(info: PluginInfo) -> str:
    kinds = (f"{hook.removeprefix('quire_')}: {', '.join(names)}" for hook, names in info.records.items())
    events = (hook for hook in info.hooks if hook not in info.records)
    return "\n".join([*kinds, *events])


def _run(args: argparse.Namespace) -> int:
    infos = listing(args.registry)
    if args.json:
        print(json.dumps([asdict(info) for info in infos], indent=1, default=list))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("plugin", "distribution", "version", "enabled", "brings")
    for info in infos:
        table.add_row(info.name, info.distribution, info.version, "yes" if info.enabled else "no", _brings(info))
    Console().print(table)
    return 0


COMMAND = Command("plugins", "list plugins: name, distribution, version, hooks, records", _configure, _run)
