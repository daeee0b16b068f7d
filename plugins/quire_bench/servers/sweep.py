"""`bench sweep`: the same workload at several request rates, for throughput and latency under load."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from quire.commands.remote import OpenAIServer, add_remote_flags
from quire_bench.report import show_table, write_json
from quire_bench.servers.load import LoadPattern, add_load_flags, send
from quire_bench.servers.plot import Panel, Picture, picture_file

COLUMNS = {
    "request_rate": "rate req/s",
    "requests_per_s": "done req/s",
    "output_tokens_per_s": "output tok/s",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "TTFT p99 ms",
    "itl_p50_ms": "ITL p50 ms",
    "itl_p99_ms": "ITL p99 ms",
}


def configure(parser: argparse.ArgumentParser) -> None:
    add_remote_flags(parser)
    add_load_flags(parser)
    parser.add_argument(
        "--rates",
        type=rates,
        default="1,2,4,8",
        metavar="R,R",
        help="request rates per second to measure one after another",
    )
    parser.add_argument(
        "--plot", type=picture_file, default=None, metavar="FILE", help="file for a plot of the curves, e.g. s.png"
    )


def rates(text: str) -> list[float]:
    """Reads `1,2,4`: finite numbers above 0; returns them sorted and without duplicates."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,2,4") from error
    if not all(math.isfinite(rate) and rate > 0 for rate in found):
        raise argparse.ArgumentTypeError(f"{text!r}: rates must be finite and above 0")
    return sorted(set(found))


def run(args: argparse.Namespace) -> int:
    """Measures one rate after the other; a failed request ends the sweep with an error and status 1."""
    remote = OpenAIServer.from_args(args)
    model = args.model_name or remote.first_model()
    if args.num_warmups:
        send(remote, LoadPattern.warmup(args, model)).checked()
    fresh, points = time.time_ns(), []
    for number, rate in enumerate(args.rates):
        # new ids for every rate and every call: no server has them in its prefix cache
        outcome = send(remote, LoadPattern.from_args(args, model, rate, salt=fresh + number)).checked()
        points.append({"request_rate": rate, **outcome.figures()})
        print(f"{rate:g} requests/s: {outcome.elapsed_s:.1f} s", file=sys.stderr)
    show_table(f"sweep of {model}", list(COLUMNS.values()), ([point[name] for name in COLUMNS] for point in points))
    write_json("sweep", {"model": model, "url": remote.url, "points": points}, args.output_json)
    if args.plot:
        _picture(args, model, points).save(args.plot)
    return 0


def _picture(args: argparse.Namespace, model: str, points: Sequence[Mapping[str, Any]]) -> Picture:
    def curve(name: str) -> list[float]:
        return [point[name] for point in points]

    def percentiles(what: str) -> dict[str, Sequence[float]]:
        return {"median": curve(f"{what}_p50_ms"), "99th percentile": curve(f"{what}_p99_ms")}

    return Picture(
        title=f"{model}: {args.num_prompts} requests at each rate, prompts of {args.input_len} tokens, "
        f"outputs of {args.output_len}",
        x_label="request rate (requests/s)",
        x=curve("request_rate"),
        panels=(
            Panel("output throughput (tokens/s)", {"output": curve("output_tokens_per_s")}),
            Panel("time to first token (ms)", percentiles("ttft"), log=True),
            Panel("inter-token latency (ms)", percentiles("itl"), log=True),
        ),
    )
