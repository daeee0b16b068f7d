"""Logs one JSON line per ended request, and shows the log by an HTTP route and by a command.

The file is the only state: the event hook writes it, the route and the command read it.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.plugin import Command, Option, Router, RouterContext, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter

    from quire.plugin import RequestSummary

PLUGIN = "request-log"


def last(path: str, count: int) -> list[dict[str, Any]]:
    """The last `count` lines of the log, oldest first; none if there is no log yet."""
    if not Path(path).exists():
        return []
    with Path(path).open(encoding="utf-8") as file:
        return [json.loads(line) for line in deque(file, maxlen=count)]


@hookimpl
def quire_options() -> Iterable[Option]:
    """The path of the log."""
    yield Option("path", str, "requests.jsonl", "file that a line per request is appended to")


@hookimpl
def quire_request_finished(summary: RequestSummary, options: Mapping[str, Any]) -> None:
    """Append a line. Quire calls this from one thread, so lines do not mix."""
    with Path(options["path"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(summary)) + "\n")


def build_router(context: RouterContext) -> APIRouter:
    from fastapi import APIRouter

    router = APIRouter(tags=["Request log"])
    path = context.options["path"]

    @router.get("/request-log")
    def request_log(count: int = 100) -> list[dict[str, Any]]:
        """The last requests, oldest first."""
        return last(path, max(0, count))

    return router


@hookimpl
def quire_routers() -> Iterable[Router]:
    """The route `GET /request-log`."""
    yield Router("request-log", build_router)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=20, help="how many of the last requests")


def run(args: argparse.Namespace) -> int:
    for row in last(args.registry.options[PLUGIN]["path"], args.count):
        tokens = f"{row['num_prompt_tokens']}+{row['num_generated_tokens']}"
        print(f"{row['request_id']:40} {row['model']:20} {tokens:>12} {row['e2e_s']:8.3f} s  {row['finish_reason']}")
    return 0


@hookimpl
def quire_commands() -> Iterable[Command]:
    """The command `platform request-log`."""
    yield Command("request-log", "show the last requests that were logged", configure, run)
