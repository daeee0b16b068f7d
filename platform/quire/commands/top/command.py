"""The command `platform top`."""

from __future__ import annotations

import argparse
import os

from quire.records import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument(
        "--api-key", default=os.environ.get("OPENAI_API_KEY"), help="API key (default: $OPENAI_API_KEY)"
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between two frames")
    parser.add_argument("--once", action="store_true", help="measure one interval, print it and exit")


def _run(args: argparse.Namespace) -> int:
    from quire.commands.top.live import run  # imports libraries that `platform --help` does not need

    return run(args)


COMMAND = Command("top", "show the load of a running server in the terminal", _configure, _run)
