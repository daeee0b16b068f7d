"""`platform usage`: prints what the requests of a running server used, by tenant, model or another key."""

from __future__ import annotations

import argparse
import csv
import io
import os
from collections.abc import Sequence

from quire.commands.remote import RemoteError
from quire.commands.terminal_text import visible
from quire.records import Command

SHOWN = ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens", "device_seconds")
"""Columns of the table; `--csv` prints all."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument(
        "--api-key",
        default=os.environ.get("OPENAI_API_KEY"),
        help="API key; an admin key shows all tenants (default: $OPENAI_API_KEY)",
    )
    parser.add_argument("--by", default="model", help="keys: tenant, model, adapter, endpoint, outcome, with commas")
    parser.add_argument("--from", dest="start", metavar="TIME", help="first time, such as 2026-01-31 (UTC)")
    parser.add_argument("--to", dest="end", metavar="TIME", help="time after the last one")
    parser.add_argument("--per", default="all", choices=("1m", "1h", "1d", "all"), help="a row for each (default: all)")
    parser.add_argument("--csv", action="store_true", help="print CSV, with all columns")


def _run(args: argparse.Namespace) -> int:
    given = {"group_by": args.by, "bucket_width": args.per, "from": args.start, "to": args.end, "limit": "10000"}
    text = _fetch(args.url.rstrip("/"), args.api_key, {name: value for name, value in given.items() if value})
    if args.csv:
        print(text, end="")
        return 0
    rows = list(csv.DictReader(io.StringIO(text)))
    keys = [key for key in args.by.split(",") if key]
    times = [] if args.per == "all" else ["start_time"]
    columns = [*times, *keys, *SHOWN]
    print(_table([columns, *([visible(row[column]) for column in columns] for row in rows)], len(times) + len(keys)))
    return 0


def _fetch(url: str, api_key: str | None, query: dict[str, str]) -> str:
    """The usage as CSV. Raises RemoteError."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        reply = httpx.get(f"{url}/v1/usage", params={**query, "format": "csv"}, headers=headers, timeout=30)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RemoteError(f"No server responds at {url}: {error}. Choose one with --url.") from error
    if reply.status_code != 200:
        try:
            answered = reply.json()["error"]
            message = answered["message"] if isinstance(answered, dict) else answered
        except (ValueError, KeyError, TypeError):
            message = reply.text[:500]
        raise RemoteError(f"{reply.status_code}: {message}")
    if "x-next-page" in reply.headers:
        raise RemoteError("There are more than 10000 rows; ask for a shorter time or fewer keys.")
    return reply.text


def _table(rows: Sequence[Sequence[str]], num_texts: int) -> str:
    """Aligned columns: the first `num_texts` to the left, the numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < num_texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


COMMAND = Command("usage", "show what the requests of a running server used", _configure, _run)
