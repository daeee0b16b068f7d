"""One JSON line per ended request, and three ways to read it: the file, an HTTP route, a command.

The file is the only state: the event writes it, route and command read it.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire import Command, Option, Router, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter

    from quire.types import RequestSummary

PLUGIN = "request-log"


def last(path: str, count: int) -> list[dict[str, Any]]:
    """The last `count` lines of the log, oldest first; none if there is no log yet."""
    if not Path(path).exists():
        return []
    with Path(path).open(encoding="utf-8") as file:
        return [json.loads(line) for line in deque(file, maxlen=count)]


@hookimpl
def quire_options() -> Iterable[Option]:
    """Where the log lies."""
    yield Option("path", str, "requests.jsonl", "file that a line per request is appended to")


@hookimpl
def quire_request_finished(summary: RequestSummary, options: Mapping[str, Any]) -> None:
    """Append a line. Calls come one after another, so lines don't mix."""
    with Path(options["path"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(summary)) + "\n")


def build_router(service: Any) -> APIRouter:
    """`service` is the server's; of it only the registry is used, for our own options."""
    from fastapi import APIRouter

    router = APIRouter(tags=["Request log"])
    path = service.registry.options[PLUGIN]["path"]

    @router.get("/request-log")
    def request_log(count: int = 100) -> list[dict[str, Any]]:
        """The last requests, oldest first."""
        return last(path, max(0, count))

    return router


@hookimpl
def quire_routers() -> Iterable[Router]:
    """`GET /request-log`."""
    yield Router("request-log", build_router)


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("--count", type=int, default=20, help="how many of the last requests")


def run(args: argparse.Namespace) -> int:
    """Print a table."""
    for row in last(args.registry.options[PLUGIN]["path"], args.count):
        tokens = f"{row['num_prompt_tokens']}+{row['num_generated_tokens']}"
        print(f"{row['request_id']:40} {row['model']:20} {tokens:>12} {row['e2e_s']:8.3f} s  {row['finish_reason']}")
    return 0


@hookimpl
def quire_commands() -> Iterable[Command]:
    """`platform request-log`."""
    yield Command("request-log", "show the last requests that were logged", configure, run)
