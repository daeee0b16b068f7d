"""Kills a server that accounts for what it does, under load: its totals must equal what clients saw.

    python tests/benchmarks/services/usage_totals.py          5,000 requests, kill -9 of the engine process, then of all
    python tests/benchmarks/services/usage_totals.py --latency   what storing the usage of an answer adds to its latency

A third of the requests are streams, a third of these are closed midway. Each answer whose end a client received must
have one row with the tokens that the answer named, and no request may have two. `test_usage_kills.py` runs a short one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.extend(str(folder) for folder in (Path(__file__).parents[2] / "helpers").iterdir())

import httpx
from serving import Server, serving

from quire.records import Registry
from quire.server.accounting.ledger import UsageLedger
from quire.server.accounting.retention import RetentionLimits
from quire.server.accounting.store import UsageStore
from quire.server.accounting.usage_metrics import UsageMetrics
from quire.server.accounting.writer import WriterThread
from quire.types import UsageRecord
from quire_testing.tiny import tiny_llama

FLAGS = ("--dtype", "float32", "--num-pages", "600", "--max-model-len", "256", "--disable-access-log")
TIMEOUT_S = 60


@dataclass
class Seen:
    """What clients saw. finished: (prompt, completion) tokens by id. closed: ids of streams that they closed."""

    finished: dict[str, tuple[int, int]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    errors: set[str] = field(default_factory=set)


@dataclass
class Load:
    """Requests of several clients to one server after another. url: of the server that runs now."""

    count: int
    seen: Seen = field(default_factory=Seen)
    url: str = ""
    number: int = 0
    running: asyncio.Event = field(default_factory=asyncio.Event)
    reached: dict[int, asyncio.Event] = field(default_factory=dict)

    async def client(self) -> None:
        """Send requests until all were sent."""
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_keepalive_connections=1)) as http:
            while self.number < self.count:
                self.number += 1
                number = self.number
                if number in self.reached:
                    self.reached[number].set()
                await self.running.wait()
                with suppress(httpx.HTTPError):
                    await self._request(http, f"r{number}", random.Random(number))
                    continue
                self.seen.errors.add(f"r{number}")

    async def _request(self, http: httpx.AsyncClient, name: str, rng: random.Random) -> None:
        body: dict[str, Any] = {
            "prompt": "x" * rng.randint(1, 60),
            "max_tokens": rng.randint(1, 24),
            "ignore_eos": True,
            "seed": rng.randint(0, 1000),
        }
        headers = {"X-Request-Id": name}
        if rng.random() < 2 / 3:
            answer = await http.post(f"{self.url}/v1/completions", json=body, headers=headers)
            if answer.status_code == 200:
                self._ended(name, answer.json()["usage"])
            else:
                self.seen.errors.add(name)
            return
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        closes_after = rng.randint(0, 10) if rng.random() < 1 / 3 else None
        usage, num_events = None, 0
        async with http.stream("POST", f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line == "data: [DONE]" and usage is not None:
                    self._ended(name, usage)
                    return
                if line.startswith("data: {"):
                    usage = json.loads(line[6:]).get("usage") or usage
                    num_events += 1
                if closes_after is not None and num_events > closes_after:
                    self.seen.closed.add(name)
                    return
        self.seen.errors.add(name)

    def _ended(self, name: str, usage: dict[str, int]) -> None:
        self.seen.finished[name] = usage["prompt_tokens"], usage["completion_tokens"]


async def run(
    folder: Path, count: int, clients: int, kill_engine_at: int = 0, kill_server_at: int = 0, restarts: bool = True
) -> tuple[Seen, list[Any]]:
    """Send `count` requests, and kill what is to be killed when so many were sent; 0: kill nothing.

    restarts: start another server in place of a killed one; else that is the end. Returns what clients saw, and the
    rows of the accounts: id, outcome, number of requests, input and output tokens.
    """
    model, database = tiny_llama(folder / "model"), folder / "usage.sqlite"
    load = Load(count)
    load.reached = {at: asyncio.Event() for at in (kill_engine_at, kill_server_at) if at}
    with ExitStack() as servers:

        def start() -> Server:
            server = servers.enter_context(serving(f"tiny={model}", *FLAGS, "--usage-db", database))
            load.url = server.url
            return server

        server = await asyncio.to_thread(start)
        load.running.set()
        sending = asyncio.gather(*(load.client() for _ in range(clients)))
        if kill_engine_at:
            await load.reached[kill_engine_at].wait()
            await asyncio.to_thread(server.kill_engine)
        if kill_server_at:
            await load.reached[kill_server_at].wait()
            load.running.clear()
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
            if restarts:
                server = await asyncio.to_thread(start)
            else:
                load.number = count
            load.running.set()
        await sending
        if restarts:
            assert server.stop() == 0, server.output()
        assert "Traceback" not in server.output(), server.output()
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT id, outcome, num_requests, input_tokens, output_tokens FROM usage"
        return load.seen, connection.execute(query).fetchall()


def check(seen: Seen, rows: list[Any]) -> Counter[str]:
    """Compare, and count what was found. Raises AssertionError where the accounts are wrong."""
    by_name: dict[str, list[Any]] = {}
    for row in rows:
        assert row[2] == 1, "no request was merged with others"
        by_name.setdefault(row[0].split("-")[1], []).append(row)
    twice = {name for name, found in by_name.items() if len(found) > 1}
    assert not twice, f"accounted for twice: {sorted(twice)[:10]}"
    for name, (prompt, completion) in seen.finished.items():
        assert name in by_name, f"{name} is not in the accounts"
        _, outcome, _, tokens_in, tokens_out = by_name[name][0]
        assert (outcome, tokens_in, tokens_out) == ("finished", prompt, completion), (name, by_name[name], completion)
    mine = [by_name[name][0] for name in seen.finished]
    assert sum(row[3] for row in mine) == sum(prompt for prompt, _ in seen.finished.values())
    assert sum(row[4] for row in mine) == sum(completion for _, completion in seen.finished.values())
    counts = Counter({f"row {row[1]}": 0 for row in rows}) + Counter(f"row {row[1]}" for row in rows)
    counts["clients saw the end"] = len(seen.finished)
    counts["clients closed the stream"] = len(seen.closed)
    counts["clients saw an error"] = len(seen.errors)
    counts["finished, but the client was not told"] = counts["row finished"] - len(seen.finished)
    counts["input tokens, by clients and by accounts"] = sum(row[3] for row in mine)
    counts["output tokens, by clients and by accounts"] = sum(row[4] for row in mine)
    return counts


async def latencies(url: str, count: int, clients: int) -> list[float]:
    """Seconds of answers of one token."""
    found: list[float] = []

    async def client() -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as http:
            for _ in range(count // clients):
                begin = time.perf_counter()
                body = {"prompt": "abc", "max_tokens": 1, "ignore_eos": True}
                (await http.post(f"{url}/v1/completions", json=body)).raise_for_status()
                found.append(time.perf_counter() - begin)

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


async def waits(folder: Path, count: int, clients: int) -> list[float]:
    """Seconds that answers wait for their rows, in a process that does nothing else."""
    store = UsageStore(folder / f"waits-{clients}.sqlite", RetentionLimits(days=30, rows=10**6))
    ledger = UsageLedger(Registry(), UsageMetrics("", 0))
    writer = WriterThread(store, None, ledger.on_written)
    ledger.write_with(writer)
    found: list[float] = []

    async def client(first: int) -> None:
        for number in range(first, first + count // clients):
            record = UsageRecord(
                id=f"cmpl-{number:032x}-0", ended=time.time(), tenant="key:0123456789ab", model="m", adapter="",
                endpoint="/v1/completions", outcome="finished", input_tokens=100, output_tokens=100,
            )  # fmt: skip
            begin = time.perf_counter()
            ledger.add([record])
            await ledger.stored()
            found.append(time.perf_counter() - begin)
            await asyncio.sleep(0.001)

    await asyncio.gather(*(client(one * count) for one in range(clients)))
    await asyncio.to_thread(ledger.close, 30)
    return found


def print_latency(folder: Path, rounds: int) -> None:
    """What a row adds to an answer: the wait alone, and answers of servers with and without a database, alternating."""
    for clients in (1, 16, 256):
        times = sorted(asyncio.run(waits(folder, 5120, clients)))
        half, most = statistics.median(times) * 1e3, times[int(0.99 * len(times))] * 1e3
        print(f"{clients:3} answers at once wait for their rows: median {half:.2f} ms, 99 % {most:.2f} ms", flush=True)
    if not rounds:
        return
    model = tiny_llama(folder / "model")
    with (
        serving(f"tiny={model}", *FLAGS) as plain,
        serving(f"tiny={model}", *FLAGS, "--usage-db", folder / "usage.sqlite") as storing,
    ):
        for clients in (1, 16):
            found: dict[str, list[float]] = {"without": [], "with": []}
            for _ in range(rounds):
                for name, server in (("without", plain), ("with", storing)):
                    found[name] += asyncio.run(latencies(server.url, 320, clients))
            for name, times in found.items():
                half = statistics.median(times) * 1e3
                print(f"{clients:3} clients, {name:7} a database: an answer takes {half:.2f} ms (median)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="of the comparison of two servers; 0: none")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.latency:
            print_latency(Path(folder), args.rounds)
            return
        begin, count = time.monotonic(), args.requests
        seen, rows = asyncio.run(run(Path(folder), count, args.clients, count // 3, 2 * count // 3))
        for what, number in check(seen, rows).items():
            print(f"{number:8,}  {what}")
        print(f"{time.monotonic() - begin:8.0f}  seconds")


if __name__ == "__main__":
    main()
