"""Tenants with a server: a tenant with 64 streams beside three steady ones, and what tenants cost.

    python tests/benchmarks/services/tenant_fairness.py [--seconds 20] [--turns 3] [--weights 1,1,1,1]

Prints Jain's index of the service of the four tenants by weight (tokens of prompts and answers; 1 is even), the 99th
percentile of the time to the first token of the steady ones, alone and beside the flood, and the throughput of all
streams with tenants and of as many streams with one key of --api-key, in alternating turns, the best of each compared.
Exit status 1 if the index is under 0.95 or the throughput with tenants under 0.98 of that without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers" / "fakes"))

from serving import serving

from quire.server.tenants.edit import create_key

MIN_JAIN, MIN_THROUGHPUT = 0.95, 0.98
FLOOD, STEADY = "flood", ("one", "two", "three")
PROMPT_TOKENS, ANSWER_TOKENS = 64, 48
FLAGS = ("demo-chat", "--max-num-seqs", "32", "--disable-access-log", "--disable-log-stats")
PLAIN_KEY = "plain"


@dataclass
class Measured:
    """What the streams of one key got in a phase. tokens: of prompts that were begun, and of answers."""

    tokens: int = 0
    first_s: list[float] = field(default_factory=list)


class Streams:
    """Clients with one key that each ask for the next stream when one has ended."""

    def __init__(self, client: httpx.AsyncClient, key: str, number: int) -> None:
        self.measured = Measured()
        self._client, self._headers = client, {"Authorization": f"Bearer {key}"}
        self._tasks = [asyncio.create_task(self._run()) for _ in range(number)]

    async def _run(self) -> None:
        while True:
            ids = random.choices(range(100, 300), k=PROMPT_TOKENS)  # differs, so that no prefix is cached
            body = {"prompt": ids, "max_tokens": ANSWER_TOKENS, "ignore_eos": True, "stream": True}
            body["return_token_ids"] = True
            begin, first = time.perf_counter(), True
            async with self._client.stream("POST", "/v1/completions", json=body, headers=self._headers) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    count = _num_tokens(line)
                    if count and first:
                        first = False
                        self.measured.first_s.append(time.perf_counter() - begin)
                        count += PROMPT_TOKENS
                    self.measured.tokens += count

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task


def _num_tokens(line: str) -> int:
    if not line.startswith("data: {"):
        return 0
    return sum(len(choice.get("token_ids") or ()) for choice in json.loads(line[6:])["choices"])


async def phase(port: int, streams: Mapping[str, tuple[str, int]], seconds: float) -> dict[str, Measured]:
    """Run streams for a time and measure them, after they have all begun. streams: key and number by name."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=300) as client:
        running = {name: Streams(client, key, number) for name, (key, number) in streams.items()}
        await asyncio.sleep(seconds / 4)
        for one in running.values():
            one.measured = Measured()
        await asyncio.sleep(seconds)
        measured = {name: one.measured for name, one in running.items()}
        await asyncio.gather(*(one.stop() for one in running.values()))
    return measured


def jain(values: Sequence[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def p99_ms(measured: Mapping[str, Measured]) -> float:
    times = sorted(s for name in STEADY for s in measured[name].first_s)
    return 1000 * times[int(0.99 * len(times))] if times else float("nan")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--weights", default="1,1,1,1", help="of the flood and the steady ones")
    parser.add_argument("--streams", type=int, default=12, help="of each steady tenant")
    args = parser.parse_args(argv)
    weights = dict(zip((FLOOD, *STEADY), map(float, args.weights.split(",")), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.yaml"
        path.write_text(yaml.safe_dump({"tenants": {name: {"weight": weight} for name, weight in weights.items()}}))
        keys = {name: create_key(path, name, {}).secret for name in weights}
        steady = {name: (keys[name], args.streams) for name in STEADY}
        everyone = {FLOOD: (keys[FLOOD], 64), **steady}
        one_client = {"plain": (PLAIN_KEY, 64 + 3 * args.streams)}
        with serving(*FLAGS, "--key-file", path) as server, serving(*FLAGS, "--api-key", PLAIN_KEY) as plain:
            alone = asyncio.run(phase(server.port, steady, args.seconds))
            rates: dict[str, list[float]] = {"tenants": [], "plain": []}
            indices, beside = [], []
            for _ in range(args.turns):
                found = asyncio.run(phase(server.port, everyone, args.seconds))
                if not any(one.tokens for one in found.values()):
                    continue  # the machine stood still
                indices.append(jain([found[name].tokens / weight for name, weight in weights.items()]))
                beside.append(p99_ms(found))
                rates["tenants"].append(sum(one.tokens for one in found.values()) / args.seconds)
                found = asyncio.run(phase(plain.port, one_client, args.seconds))
                rates["plain"].append(found["plain"].tokens / args.seconds)
    ratio = max(rates["tenants"]) / max(rates["plain"])  # other work on the machine only makes a turn slower
    shown = ", ".join(f"{index:.4f}" for index in indices)
    print(f"Jain's index by weight      {shown} (median at least {MIN_JAIN})")
    print(
        f"first token of steady, p99  {p99_ms(alone):.0f} ms alone, {statistics.median(beside):.0f} ms beside the flood"
    )
    for name, values in rates.items():
        print(f"tokens per second, {name:8} {', '.join(f'{value:.0f}' for value in values)}")
    print(f"throughput with tenants     {ratio:.3f} of that without (at least {MIN_THROUGHPUT})")
    return int(statistics.median(indices) < MIN_JAIN or ratio < MIN_THROUGHPUT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
