"""`bench serve`: load on any OpenAI-compatible server, with Poisson arrivals."""

from __future__ import annotations

import argparse
import time

from quire.commands.remote import OpenAIServer, add_remote_flags
from quire_bench.report import show
from quire_bench.servers.load import LoadPattern, add_load_flags, add_rate_flag, send


def configure(parser: argparse.ArgumentParser) -> None:
    add_remote_flags(parser)
    add_load_flags(parser)
    add_rate_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Sends the load and prints latencies; the exit status is 1 if a request failed."""
    remote = OpenAIServer.from_args(args)
    model = args.model_name or remote.first_model()
    if args.num_warmups:
        send(remote, LoadPattern.warmup(args, model))
    # new ids in every call: the server has none of them in its prefix cache
    outcome = send(remote, LoadPattern.from_args(args, model, args.request_rate, salt=time.time_ns()))
    figures = {"model": model, "request_rate": args.request_rate, **outcome.figures()}
    errors = outcome.errors
    show("serve", {**figures, **({"first_error": errors[0]} if errors else {})}, args.output_json)
    return 1 if errors else 0
