"""`platform plugins`: lists installed plugins, whether they are loaded, and what each provides. Imports no torch."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from quire.hooks.discovery import adapter_plugins
from quire.hooks.registry import listing
from quire.records import Command, PluginInfo

MAX_WIDTH = 120


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def describe(info: PluginInfo, width: int) -> Iterator[str]:
    """Lines of at most `width` characters: name and origin, then what the plugin provides, and how to enable it."""
    state = "" if info.enabled else ", not enabled"
    yield f"{info.name}  ({info.distribution} {info.version}{state})"
    events = [hook.removeprefix("quire_") for hook in info.hooks if hook not in info.records]
    provided = {hook.removeprefix("quire_"): names for hook, names in info.records.items()}
    for kind, names in {**provided, "events": events}.items():
        if names:
            text = f"{kind.replace('_', ' ')}: {', '.join(names)}"
            yield from textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="      ")
    if not info.enabled:
        yield f"    to enable it: {_flag_for(info)}"


def _flag_for(info: PluginInfo) -> str:
    return "--enable-lora" if info.name in adapter_plugins() else f"--plugins +{info.name}"


def _run(args: argparse.Namespace) -> int:
    infos = listing(args.registry)
    if args.json:
        print(json.dumps([asdict(info) for info in infos], indent=1, default=list))
        return 0
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    for info in infos:
        print("\n".join(describe(info, width)))
    return 0


COMMAND = Command("plugins", "list plugins, what each provides, and how to enable it", _configure, _run)
