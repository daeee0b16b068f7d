"""Plugin bench: the command `platform bench`, with one kind of measurement per module.

Kinds that load a model (`offline`, `embed`, `multimodal`, `structured`, `profiling`) build an engine in this process
and submit the requests of a `workload`; `quality` submits a text. Kinds that measure servers (`servers`) send them over
HTTP. `routing` simulates replicas. `report` prints tables and writes JSON.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from quire import Command, hookimpl

_KINDS = {
    "throughput": ("offline", "_throughput", "measure throughput: many requests at once, in this process"),
    "latency": ("offline", "_latency", "measure latency: the same batch repeatedly, in this process"),
    "embed": ("embed", "", "measure embeddings: many prompts, in this process"),
    "pictures": ("multimodal", "", "compare prompts with images, text prompts and the vision encoder alone"),
    "structured": ("structured", "", "measure structured output, and other requests during adversarial schemas"),
    "quality": ("quality", "", "measure perplexity, and the KL divergence from a reference model"),
    "profile": ("profiling.profile", "", "show where the time of steps goes, and how far it is from the roofline"),
    "serve": ("servers.online", "", "send load to a running server"),
    "sweep": ("servers.sweep", "", "measure a running server at several request rates"),
    "compare": ("servers.compare", "", "compare two running servers by alternating the same workload"),
    "route": ("routing.command", "", "compare policies that place requests on replicas, in a simulation"),
    "startup": ("servers.startup", "", "measure the time from start to the first response"),
}
"""By name: module, suffix of its functions `configure` and `run`, help. Modules are imported when the command runs."""


@hookimpl
def quire_commands() -> Sequence[Command]:
    return [Command("bench", f"run a benchmark: {', '.join(_KINDS)}", _configure, _run)]


def _configure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, (module, suffix, text) in _KINDS.items():
        functions = vars(import_module(f"quire_bench.{module}"))
        kind = kinds.add_parser(name, help=text, description=text)
        kind.add_argument("--output-json", metavar="FILE", help="also write the results to this file")
        functions[f"configure{suffix}"](kind)
        kind.set_defaults(bench=functions[f"run{suffix}"])


def _run(args: argparse.Namespace) -> int:
    """Exit status 2 means settings that are not possible, 1 a server that failed during the measurement."""
    from quire.commands.remote import RemoteError

    try:
        return int(args.bench(args))
    except RemoteError as error:
        print(f"platform: error: {error.message}", file=sys.stderr)
        return 1
