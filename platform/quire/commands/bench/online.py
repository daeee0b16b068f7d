"""`bench serve`: load on any OpenAI-compatible server, with arrival times of a Poisson process."""

from __future__ import annotations

import argparse
import time

from quire.commands.bench.load import Load, add_load_flags, add_rate_flag, send
from quire.commands.bench.report import show
from quire.commands.remote import Remote, add_remote_flags


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags of `bench serve`."""
    add_remote_flags(parser)
    add_load_flags(parser)
    add_rate_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Send the load and print latencies; the exit status is 1 if a request failed."""
    remote = Remote.of(args)
    model = args.model_name or remote.first_model()
    if args.num_warmups:
        send(remote, Load.warmup(args, model))
    # ids of their own in every call: the server has none of them in its prefix cache
    outcome = send(remote, Load.of(args, model, args.request_rate, salt=time.time_ns()))
    figures = {"model": model, "request_rate": args.request_rate, **outcome.figures()}
    errors = outcome.errors
    show("serve", {**figures, **({"first_error": errors[0]} if errors else {})}, args.output_json)
    return 1 if errors else 0
