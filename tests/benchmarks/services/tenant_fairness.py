"""Tenants with a server: a tenant with 64 streams beside three steady ones, and what tenants cost.

    python tests/benchmarks/services/tenant_fairness.py [--model …] [--seconds 20] [--turns 3]

Without --model a model is made with the shape of SmolLM-135M and random weights. With `demo-chat`, whose steps take
4 ms, most of what is measured is Python in the server's processes.

Three measurements, of turns that alternate, each with servers of its own, because two processes of one program may
differ in speed by some per cent for as long as they run:

- All four tenants always have more requests than their share of places (`--streams` of each steady one): Jain's index
  of their service by weight (tokens of prompts and answers; 1 is even).
- The steady tenants ask at a steady rate, at random times, for `--load` of their share together: the 99th percentile
  of their time to the first token without and beside the flood. Both times they ask at the same times.
- The throughput of all streams with tenants, and of as many streams with one key of --api-key.

Exit status 1 if the index is under 0.95, the time to the first token more than doubled, or the throughput with tenants
under 0.98 of that without.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "helpers" / "fakes"))

from long_prompts import make_model
from serving import serving
from stream_clients import Load, Phase, Service, measure

from quire.server.tenants.edit import create_key

MIN_JAIN, MAX_SLOWDOWN, MIN_THROUGHPUT = 0.95, 2.0, 0.98
FLOOD, STEADY = "flood", ("one", "two", "three")
FLOOD_STREAMS = 64
PROMPT_TOKENS, ANSWER_TOKENS = 64, 48
PLAIN_KEY = "plain"


def jain(values: Sequence[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


@dataclass
class Found:
    """What was measured: of each turn the index and tokens per second with tenants and of one client, and the steady
    tenants' milliseconds to the first token of all turns, alone and beside the flood."""

    indices: list[float] = field(default_factory=list)
    with_tenants: list[float] = field(default_factory=list)
    without: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)


def quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(part * len(values))]


def load_of(key: str, clients: int = 0, rate: float = 0.0, seed: int = 0) -> Load:
    return Load(key, PROMPT_TOKENS, ANSWER_TOKENS, clients, rate, seed)


def even(phase: Phase, keys: Mapping[str, str], weights: Mapping[str, float], streams: int) -> tuple[float, float]:
    """Jain's index of service by weight, and tokens per second, while every tenant has waiting requests."""
    steady = [load_of(keys[name], streams) for name in STEADY]
    [flood], found = measure(phase, [load_of(keys[FLOOD], FLOOD_STREAMS)], steady)
    tokens = dict(zip((FLOOD, *STEADY), (each.tokens for each in (flood, *found)), strict=True))
    return jain([tokens[name] / weights[name] for name in tokens]), sum(tokens.values()) / phase.seconds


def plain(phase: Phase, streams: int) -> float:
    """Tokens per second of as many streams of one client."""
    services = measure(phase, [load_of(PLAIN_KEY, FLOOD_STREAMS)], [load_of(PLAIN_KEY, streams * len(STEADY))])
    return sum(each.tokens for found in services for each in found) / phase.seconds


def first_token(phase: Phase, keys: Mapping[str, str], rate: float, turn: int) -> tuple[list[float], list[float]]:
    """The steady tenants' milliseconds to the first token, alone and beside the flood.

    rate: requests per second of each of them.
    """
    steady = [load_of(keys[name], rate=rate, seed=turn * len(STEADY) + i) for i, name in enumerate(STEADY)]
    (alone,) = measure(phase, steady)
    _, beside = measure(phase, [load_of(keys[FLOOD], FLOOD_STREAMS)], steady)
    return _ms(alone), _ms(beside)


def _ms(services: Sequence[Service]) -> list[float]:
    return [1000 * s for service in services for s in service.first_s]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as for `platform serve`")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--weights", default="1,1,1,1", help="of the flood and the steady ones")
    parser.add_argument("--streams", type=int, default=12, help="of each steady tenant, when all have waiting requests")
    parser.add_argument("--load", type=float, default=0.5, help="of the steady tenants' share of the throughput")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    args = parser.parse_args(argv)
    weights = dict(zip((FLOOD, *STEADY), map(float, args.weights.split(",")), strict=True))
    flags = ("--max-num-seqs", str(args.max_num_seqs), "--disable-access-log", "--disable-log-stats")
    found = Found()
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            args.model = str(Path(folder) / "model")
            make_model(Path(args.model), "smol135")
        path = Path(folder) / "keys.yaml"
        path.write_text(yaml.safe_dump({"tenants": {name: {"weight": weight} for name, weight in weights.items()}}))
        keys = {name: create_key(path, name, {}).secret for name in weights}
        for turn in range(args.turns):
            with ExitStack() as stack:
                sides = [("--key-file", path), ("--api-key", PLAIN_KEY)]
                ports = {
                    side[0]: stack.enter_context(serving(args.model, *flags, *side)).port
                    for side in (sides if turn % 2 else reversed(sides))
                }
                phase, other = (Phase(ports[flag], args.model, args.seconds / 4, args.seconds) for flag, _ in sides)
                for each, key in ((phase, keys[FLOOD]), (other, PLAIN_KEY)):
                    measure(replace(each, warm_s=0, seconds=each.warm_s), [load_of(key, FLOOD_STREAMS)])
                index, rate = even(phase, keys, weights, args.streams)
                found.indices.append(index)
                found.with_tenants.append(rate)
                found.without.append(plain(other, args.streams))
                share = (1 - weights[FLOOD] / sum(weights.values())) / len(STEADY)
                requests = rate * share * args.load / (PROMPT_TOKENS + ANSWER_TOKENS)
                alone, beside = first_token(phase, keys, requests, turn)
                found.alone += alone
                found.beside += beside
    return report(found)


def report(found: Found) -> int:
    """Print what was found and what it should be; 1 if something is missed."""
    index, slowdown = statistics.median(found.indices), quantile(found.beside, 0.99) / quantile(found.alone, 0.99)
    throughput = statistics.median(found.with_tenants) / statistics.median(found.without)
    indices = ", ".join(f"{i:.4f}" for i in found.indices)
    print(f"Jain's index by weight      {index:.4f} (at least {MIN_JAIN}; {indices})")
    print(f"first token of steady, p99  {slowdown:.2f} times that without the flood (at most {MAX_SLOWDOWN})")
    for name, times in (("alone", found.alone), ("beside the flood", found.beside)):
        parts = ", ".join(f"{percent} % within {quantile(times, percent / 100):.0f}" for percent in (50, 90, 99))
        print(f"milliseconds of {len(times)}, {name:16} {parts}")
    for name, values in (("with tenants", found.with_tenants), ("one client", found.without)):
        print(f"tokens per second, {name:12} {', '.join(f'{value:.0f}' for value in values)}")
    print(f"throughput with tenants     {throughput:.3f} of that without (at least {MIN_THROUGHPUT})")
    return int(index < MIN_JAIN or throughput < MIN_THROUGHPUT or slowdown > MAX_SLOWDOWN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
