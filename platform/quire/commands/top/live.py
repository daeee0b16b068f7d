"""Repeats the frames of `platform top` until Ctrl-C."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import httpx
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from quire.commands.remote import RemoteError
from quire.commands.top.figures import figures
from quire.commands.top.frame import frame
from quire.commands.top.scrape import read

MIN_INTERVAL_S = 0.2

FILE_WIDTH = 140
"""Characters of a line where the output is not a terminal."""


def run(args: argparse.Namespace) -> int:
    """Show frames until Ctrl-C, or print one. Raises RemoteError if the server does not answer at first."""
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    with httpx.Client(headers=headers) as client:
        found = frames(client, args.url, max(MIN_INTERVAL_S, args.interval))
        if args.once:
            console.print(next(found))
            return 0
        try:
            with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
                for one in found:
                    live.update(one, refresh=True)
        except KeyboardInterrupt:
            pass
    return 0


def frames(client: httpx.Client, url: str, interval_s: float) -> Iterator[RenderableType]:
    """A frame for each interval. After the first, a frame may also say that the server does not answer."""
    before, is_first = read(client, url), True
    while True:
        time.sleep(interval_s)
        try:
            now = read(client, url)
        except RemoteError as error:
            if is_first:
                raise
            yield Text(error.message, "red")
            continue
        yield frame(url, figures(before, now))
        before, is_first = now, False
