"""What hostile constraints cost the streams beside them, through a whole server.

    python tests/benchmarks/structured_times.py MODEL [--turns 5]

Turns alternate between streams alone, streams beside batches of hostile constraints, and streams beside as many
unconstrained requests of one token. Prints the 99th percentile of the time between events for each turn, and the
ratios of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

from serving import serving

from quire_bench.adversarial import adversarial_batch

STREAMS, TOKENS, VOLLEY, EVERY_S, SETTLE_S = 8, 400, 20, 1.0, 20.0
FIELDS = {"json_schema": "json"}
"""Of `structured_outputs`, where they are called otherwise than the kind."""


def sent(**body) -> bytes:
    """A whole request, as it goes over the wire."""
    content = json.dumps({"model": "base", **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + content


def prompt(number: int) -> list[int]:
    rng = random.Random(number)
    return [rng.randint(10, 7000) for _ in range(8)]


def stream(number: int) -> bytes:
    return sent(prompt=prompt(number), max_tokens=TOKENS, temperature=0, ignore_eos=True, stream=True)


def hostile(numbers: Iterator[int]) -> list[bytes]:
    requests = []
    for asked in adversarial_batch(next(numbers) * VOLLEY, VOLLEY):
        source = json.loads(asked.source) if asked.kind == "choice" else asked.source
        fields = {FIELDS.get(asked.kind, asked.kind): source}
        requests.append(sent(prompt=prompt(next(numbers)), max_tokens=1, structured_outputs=fields))
    return requests


def harmless(numbers: Iterator[int]) -> list[bytes]:
    return [sent(prompt=prompt(next(numbers)), max_tokens=1) for _ in range(VOLLEY)]


async def events(port: int, request: bytes) -> list[float]:
    """When each event of the answer came, in seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    times = list[float]()
    while piece := await reader.read(1 << 16):
        times += [time.perf_counter()] * piece.count(b"data: {")
    writer.close()
    return times


async def ask(port: int, request: bytes, found: Counter[int]) -> None:
    """Count the status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    found[int((await reader.readline()).split()[1])] += 1
    await reader.read()
    writer.close()


async def keep_asking(port: int, adversarial_batchs: list[list[bytes]], found: Counter[int]) -> None:
    """One adversarial_batch after the other, as soon as the one before was answered and some time has passed."""
    for requests in adversarial_batchs:
        due = time.perf_counter() + EVERY_S
        await asyncio.gather(*(ask(port, request, found) for request in requests))
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


async def turn(port: int, numbers: Iterator[int], adversarial_batchs: list[list[bytes]]) -> tuple[float, Counter[int]]:
    """The 99th percentile of the milliseconds between events of the streams, and the statuses of the others."""
    found = Counter[int]()
    streams = [stream(next(numbers)) for _ in range(STREAMS)]
    asking = asyncio.create_task(keep_asking(port, adversarial_batchs, found))
    arrivals = await asyncio.gather(*(events(port, request) for request in streams))
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    gaps = [1e3 * (later - sooner) for times in arrivals for sooner, later in itertools.pairwise(times)]
    return statistics.quantiles(gaps, n=100)[98], found


async def measure(port: int, turns: int) -> None:
    numbers = itertools.count(1)
    await asyncio.sleep(SETTLE_S)  # the KV cache is taken from the system meanwhile
    makers = {"alone": lambda: [], "hostile": lambda: [hostile(numbers)], "harmless": lambda: [harmless(numbers)]}
    found = {name: list[float]() for name in makers}
    for number in range(turns + 1):
        for name, make in makers.items():
            p99, statuses = await turn(port, numbers, list(itertools.chain.from_iterable(make() for _ in range(6))))
            if number:  # the first was to warm up
                found[name].append(p99)
                print(f"{name}: p99 between events {p99:.1f} ms, answers beside {dict(statuses)}", flush=True)
    alone = statistics.median(found["alone"])
    print(*(f"{name} {statistics.median(each) / alone:.2f}" for name, each in found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    with serving(f"base={args.model}", "--max-model-len", "2048") as server:
        asyncio.run(measure(server.port, args.turns))


if __name__ == "__main__":
    main()
