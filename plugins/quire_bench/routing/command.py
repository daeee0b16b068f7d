"""`bench route`: compares the policies of `--data-parallel-routing` on one trace."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable

from quire.errors import ConfigError
from quire.routing.chosen_policy import POLICIES, ChosenPolicy
from quire_bench.report import show_table, write_json
from quire_bench.routing.replica import ReplicaSpeed
from quire_bench.routing.simulation import RoutingSimulation
from quire_bench.routing.trace import Arrival, TraceSettings, from_file, generated
from quire_bench.workload import at_least, positive

MAX_REPLICAS = 4096

COLUMNS = {
    "hit_rate": "hit rate",
    "ttft_mean_ms": "TTFT mean ms",
    "ttft_p50_ms": "p50 ms",
    "ttft_p99_ms": "p99 ms",
    "imbalance": "imbalance",
    "adapter_loads": "adapter loads",
    "seconds": "CPU s",
}


def configure(parser: argparse.ArgumentParser) -> None:
    trace, speed = TraceSettings(num_requests=1, rate=1), ReplicaSpeed()
    add = parser.add_argument
    add("--replicas", type=at_least(1), default=64, help=f"number of replicas, at most {MAX_REPLICAS}")
    add("--policies", nargs="+", metavar="NAME", help="policies to compare (default: all of the loaded plugins)")
    add("--trace", metavar="FILE", help="JSONL file with the requests (default: they are generated)")
    add("--num-requests", type=at_least(1), default=100_000, help="number of requests to generate")
    add("--request-rate", type=positive, default=10.0, metavar="X", help="requests per second and replica")
    add("--num-adapters", type=at_least(1), default=trace.num_adapters, help="number of adapters")
    add("--num-prefixes", type=at_least(1), default=trace.num_prefixes, help="number of shared prefixes")
    add("--adapted", type=float, default=trace.adapted, metavar="X", help="share of the requests with an adapter")
    add("--skew", type=float, default=trace.skew, metavar="X", help="exponent of Zipf's law for both")
    add("--cache-tokens", type=at_least(64), default=speed.cache_tokens, help="size of a replica's KV cache, in tokens")
    add("--max-loras", type=at_least(1), default=speed.slots, help="adapter slots of a replica")
    add("--seed", type=int, default=0, help="seed of the trace and of the router")
    add("--json", action="store_true", help="print the figures as JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints the figures of each policy. Raises ConfigError for a trace that cannot be read."""
    if args.replicas > MAX_REPLICAS or not 0 <= args.adapted <= 1:
        raise ConfigError(f"--replicas must be at most {MAX_REPLICAS}, and --adapted from 0 to 1.")
    speed = ReplicaSpeed(cache_tokens=args.cache_tokens, slots=args.max_loras)
    found = {}
    names = args.policies or list(args.registry.by_hook(POLICIES))
    for name, policy in [(name, ChosenPolicy(args.registry, name)) for name in names]:
        begun = time.process_time()
        simulation = RoutingSimulation(args.replicas, policy, speed, args.seed)
        figures = simulation.run(_trace(args)()).figures()
        found[name] = {**figures, "seconds": time.process_time() - begun}
    title = f"routing to {args.replicas} replicas"
    if args.json:
        print(json.dumps({"title": title, "policies": found}, indent=1))
    else:
        rows = [(name, *(figures[key] for key in COLUMNS)) for name, figures in found.items()]
        show_table(title, ("policy", *COLUMNS.values()), rows)
    write_json(title, {"policies": found}, args.output_json)
    return 0


def _trace(args: argparse.Namespace) -> Callable[[], Iterable[Arrival]]:
    if args.trace:
        return lambda: from_file(args.trace)
    settings = TraceSettings(
        num_requests=args.num_requests,
        rate=args.request_rate * args.replicas,
        num_adapters=args.num_adapters,
        num_prefixes=args.num_prefixes,
        adapted=args.adapted,
        skew=args.skew,
        seed=args.seed,
    )
    return lambda: generated(settings)
