"""What loading an adapter costs: time from the call to the first token, and pauses of other streams meanwhile.

    python tests/benchmarks/adapter_times.py MODEL ADAPTER [--large ADAPTER] [--rounds 5]

The adapters are folders in PEFT's format; their files should have been read before, so that they are in the page cache.
Prints medians, and the 99th percentile of the time between tokens of four streams, with and without adapters being
loaded and unloaded all the time, in alternating rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

import httpx
from serving import serving

STREAMS, TOKENS = 4, 256


async def first_token(http: httpx.AsyncClient, base: str, folder: Path, number: int) -> tuple[float, float]:
    """Seconds that the load call took, and from its start to the first token of an answer."""
    name = f"once-{number}"
    begin = time.perf_counter()
    reply = await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})
    assert reply.status_code == 200, reply.text
    loaded = time.perf_counter() - begin
    body = {"model": name, "prompt": [number + 5] * 16, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    reply = await http.post("/v1/completions", json=body)
    took = time.perf_counter() - begin
    assert reply.status_code == 200, reply.text
    await http.post("/v1/unload_lora_adapter", json={"lora_name": name})
    return loaded, took


async def gaps(http: httpx.AsyncClient, base: str, number: int) -> list[float]:
    """Seconds between the events of one stream."""
    body = {"model": base, "prompt": [number + 7] * 64, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    times = []
    async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        assert reply.status_code == 200
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                times.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(times)]


async def keep_loading(http: httpx.AsyncClient, folder: Path, numbers: Iterator[int]) -> None:
    for number in numbers:
        name = f"again-{number}"
        reply = await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})
        assert reply.status_code == 200, reply.text
        await http.post("/v1/unload_lora_adapter", json={"lora_name": name})


async def measure(url: str, base: str, small: Path, large: Path, rounds: int) -> None:
    numbers = itertools.count()
    async with httpx.AsyncClient(base_url=url, timeout=300) as http:
        await asyncio.gather(*(gaps(http, base, number) for number in range(STREAMS)))
        found = [await first_token(http, base, small, number) for number in range(4 * rounds)]
        loads, firsts = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"load call {loads * 1e3:.0f} ms, first token {firsts * 1e3:.0f} ms after it began (medians)")
        quiet, busy = list[float](), list[float]()
        for turn in range(rounds):
            for into, disturbs in ((quiet, False), (busy, True)):
                loading = asyncio.create_task(keep_loading(http, large, numbers)) if disturbs else None
                streams = (gaps(http, base, 100 * turn + number) for number in range(STREAMS))
                into.extend(itertools.chain.from_iterable(await asyncio.gather(*streams)))
                if loading is not None:
                    loading.cancel()
                    with suppress(asyncio.CancelledError):
                        await loading
        for what, times in (("undisturbed", quiet), ("while loading", busy)):
            median, high = statistics.median(times), statistics.quantiles(times, n=100)[98]
            print(f"{what}: between tokens median {median * 1e3:.2f} ms, p99 {high * 1e3:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--large", type=Path, help="what is loaded again and again (default: the adapter)")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    flags = ("--enable-lora", "--max-model-len", "2048")
    with serving(f"base={args.model}", *flags) as server:
        asyncio.run(measure(server.url, "base", args.adapter, args.large or args.adapter, args.rounds))


if __name__ == "__main__":
    main()
