"""Where two replicas get their requests: hit rate with shared prefixes, and on how many replicas each adapter is.

    python tests/benchmarks/replica_placement.py

A tiny model. First 8 prefixes of 384 tokens, each shared by 16 requests with 32 tokens of their own, all at once, on
one engine process and on two. Then 8 adapters, 32 requests at once, four for each, in five rounds; then one adapter
that has as many requests as the seven others together.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

import httpx
from letter_adapters import Voices
from prometheus_client.parser import text_string_to_metric_families
from serving import Server, serving

from quire_testing.tiny import tiny_llama

ADAPTERS = 8


def ids(random: Random, count: int) -> list[int]:
    return [random.randint(10, 250) for _ in range(count)]


def shared_prefixes(seed: int) -> list[dict[str, Any]]:
    random = Random(seed)
    heads = [ids(random, 384) for _ in range(8)]
    found = [{"model": "m", "prompt": head + ids(random, 32), "max_tokens": 32} for head in heads for _ in range(16)]
    random.shuffle(found)
    return found


def adapted(seed: int, weights: Sequence[int]) -> list[dict[str, object]]:
    """Requests to adapters, as many of each as its weight says."""
    random = Random(seed)
    names = [f"a{number}" for number, weight in enumerate(weights) for _ in range(weight)]
    random.shuffle(names)
    return [
        {"model": name, "prompt": ids(random, random.randint(32, 256)), "max_tokens": random.randint(32, 128)}
        for name in names
    ]


async def ask(server: Server, requests: Iterable[dict[str, object]]) -> None:
    """Send all requests at once."""
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=httpx.Limits(max_connections=200)) as http:
        bodies = [{**body, "temperature": 0, "ignore_eos": True} for body in requests]
        for reply in await asyncio.gather(*(http.post("/v1/completions", json=body) for body in bodies)):
            assert reply.status_code == 200, reply.text


def total(server: Server, name: str, **labels: str) -> list[float]:
    """A metric, for each engine process."""
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return [one.value for one in found if one.name == name and labels.items() <= one.labels.items()]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as root:
        model = tiny_llama(Path(root) / "m", seed=1)
        voices = Voices(model)
        adapters = [f"a{i}={voices.adapter(Path(root) / f'a{i}', 'BCDEFGHI'[i])}" for i in range(ADAPTERS)]
        flags = ("--dtype", "float32", "--num-pages", 1000, "--disable-access-log")
        rates = []
        for count in (1, 2):
            with serving(f"m={model}", *flags, "-dp", count) as server:
                requests = shared_prefixes(1)
                asyncio.run(ask(server, requests))
                asked, sent = 0.0, sum(len(request["prompt"]) for request in requests)
                while asked < sent:  # the server reads the counters of its engines every now and then
                    asked = sum(total(server, "quire:prefix_cache_queries_total"))
                rates.append(sum(total(server, "quire:prefix_cache_hits_total")) / asked)
                print(f"{count} engine processes: hit rate {rates[-1]:.3f}")
        print(f"ratio {rates[1] / rates[0]:.3f}")
        for what, weights, rounds in (("even", [4] * 8, 5), ("one in demand", [28] + [4] * 7, 5)):
            words = ("--enable-lora", "--lora-modules", *adapters, "--max-loras", 8)
            with serving(f"m={model}", *flags, "-dp", 2, *words) as server:
                for number in range(rounds):
                    asyncio.run(ask(server, adapted(number, weights)))
                    loaded = total(server, "quire:adapters", tier="device")
                    print(f"{what}, round {number}: adapters on the device of each replica {loaded}")


if __name__ == "__main__":
    main()
