"""`bench compare`: the same workload on two running servers in alternation, and the ratio of medians."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import httpx

from quire.commands.remote import OpenAIServer, RemoteError
from quire_bench.report import show_table, write_json
from quire_bench.servers.load import LoadPattern, add_load_flags, add_rate_flag, send
from quire_bench.workload import at_least

FIGURES = {
    "elapsed_s": "total time, s",
    "output_tokens_per_s": "output, tok/s",
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p99_ms": "TTFT p99, ms",
    "itl_p50_ms": "ITL p50, ms",
    "itl_p99_ms": "ITL p99, ms",
}


def configure(parser: argparse.ArgumentParser) -> None:
    for side in ("a", "b"):
        name = side.upper()
        parser.add_argument(
            f"url_{side}", type=base_url, metavar=f"URL_{name}", help="base URL, e.g. http://host:8000/v1"
        )
        parser.add_argument(
            f"--model-{side}", default=None, help=f"name of the model at {name} (default: its first model)"
        )
        parser.add_argument(f"--api-key-{side}", default=None, help=f"API key for {name} (default: $OPENAI_API_KEY)")
    add_load_flags(parser)
    add_rate_flag(parser)
    parser.add_argument(
        "--repeats", type=at_least(1), default=5, help="number of runs on each server; A and B alternate"
    )


def base_url(text: str) -> str:
    """Checks an http(s) URL and removes a slash at its end."""
    try:
        parts = httpx.URL(text)
    except httpx.InvalidURL:
        parts = httpx.URL()
    if parts.scheme not in ("http", "https") or not parts.host:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL such as http://127.0.0.1:8000/v1")
    return text.rstrip("/")


@dataclass(frozen=True)
class BenchTarget:
    """One of the two servers. `name` is A or B."""

    name: str
    remote: OpenAIServer
    model: str

    @classmethod
    def from_server(cls, name: str, remote: OpenAIServer, model: str | None) -> BenchTarget:
        """Uses the first model of the server if none is named. Raises RemoteError."""
        try:
            return cls(name, remote, model or remote.first_model())
        except RemoteError as error:
            raise RemoteError(f"{name}: {error.message}") from error

    def figures(self, load: LoadPattern) -> dict[str, Any]:
        """Sends a load and returns figures. Raises RemoteError if a request failed or returned another number of
        tokens.
        """
        try:
            return send(self.remote, load).checked().figures()
        except RemoteError as error:
            raise RemoteError(f"{self.name}: {self.model} at {self.remote.url}: {error.message}") from error


class Comparison(NamedTuple):
    """One figure of both servers: medians, their ratio, and the smallest and largest ratio of a pair of runs."""

    a: float
    b: float
    ratio: float
    ratio_min: float
    ratio_max: float

    @classmethod
    def from_turns(cls, a: Sequence[float], b: Sequence[float]) -> Comparison:
        """Compares the runs of A and B, pair by pair."""
        ratios = [_ratio(y, x) for x, y in zip(a, b, strict=True)]
        return cls(median(a), median(b), _ratio(median(b), median(a)), min(ratios), max(ratios))


def _ratio(above: float, below: float) -> float:
    return above / below if below else float("nan")


def run(args: argparse.Namespace) -> int:
    """Runs A, B, A, B, … and prints medians; a failed request ends it with an error and status 1."""
    key = os.environ.get("OPENAI_API_KEY")
    sides = (
        BenchTarget.from_server("A", OpenAIServer(args.url_a, args.api_key_a or key), args.model_a),
        BenchTarget.from_server("B", OpenAIServer(args.url_b, args.api_key_b or key), args.model_b),
    )
    turns = _turns(args, sides)
    found = {name: Comparison.from_turns([a[name] for a, _ in turns], [b[name] for _, b in turns]) for name in FIGURES}
    for side in sides:
        print(f"{side.name}: {side.model} at {side.remote.url}")
    columns = (f"median of {args.repeats} runs", "A", "B", "B / A", "least", "most")
    show_table("compare", columns, ((label, *found[name]) for name, label in FIGURES.items()))
    sections = {
        **{side.name.lower(): {"url": side.remote.url, "model": side.model} for side in sides},
        "medians": {name: row._asdict() for name, row in found.items()},
        "runs": [{"a": a, "b": b} for a, b in turns],
    }
    write_json("compare", sections, args.output_json)
    return 0


def _turns(args: argparse.Namespace, sides: Sequence[BenchTarget]) -> list[list[dict[str, Any]]]:
    """Figures of (A, B) for each pair of runs. Both get the same ids, unless they are one server, which would have them
    cached.
    """
    if args.num_warmups:
        for side in sides:
            side.figures(LoadPattern.warmup(args, side.model))
    same = sides[0].remote.url == sides[1].remote.url
    fresh, turns = time.time_ns(), []
    for turn in range(args.repeats):
        figures = []
        for number, side in enumerate(sides):
            salt = fresh + turn + (number * args.repeats if same else 0)
            figures.append(side.figures(LoadPattern.from_args(args, side.model, args.request_rate, salt)))
            print(f"{side.name} {turn + 1}/{args.repeats}: {figures[-1]['elapsed_s']:.2f} s", file=sys.stderr)
        turns.append(figures)
    return turns
