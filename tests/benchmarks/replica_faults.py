"""Kills and stops processes of a server with several, under load: what clients see, and how soon it is back.

    python tests/benchmarks/replica_faults.py --rounds 20              two replicas
    python tests/benchmarks/replica_faults.py --rounds 20 --ranks 2    one engine process and one more rank
    python tests/benchmarks/replica_faults.py --rounds 20 --ranks 2 --executor ray
                                                                       the same on two nodes of a Ray cluster

A tiny model, eight clients that ask without pause. In each round one replica, or one rank, gets SIGKILL or SIGSTOP. An
answer is either the right one or a 503 of the process that died.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

sys.path.extend(str(folder) for folder in (Path(__file__).parents[1] / "helpers").iterdir())

import httpx
from serving import Server, serving

from quire_testing.tiny import tiny_llama

TIMEOUT_S = 60
"""A client that waits longer hangs."""

CLIENTS = 8

ACTOR = b"ray::RankActor"

AGAIN = "the engine process takes requests again"


def children(parent: int) -> list[int]:
    """Process ids of the engine processes of a server, or of the other ranks of an engine process."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            its_parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            if its_parent == parent and "quire.engine_process" in Path(f"/proc/{entry}/cmdline").read_text():
                found.append(int(entry))
        except OSError:
            continue
    return found


def actors() -> list[int]:
    """Process ids of ranks that are actors of Ray."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{entry}/cmdline").read_bytes().startswith(ACTOR):
                found.append(int(entry))
    return found


@contextmanager
def ray_cluster() -> Iterator[None]:
    """A cluster of two nodes within this machine, which the server joins."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    nodes.add_node(num_cpus=2)
    os.environ["RAY_ADDRESS"] = nodes.address
    os.environ["OMP_NUM_THREADS"] = "1"  # of a rank, which takes its node for a machine of its own
    try:
        yield
    finally:
        nodes.shutdown()


def started(pid: int) -> int:
    """When a process began, in ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def victims(server: Server, num_engines: int) -> list[int]:
    """Process ids of the engine processes, and of the other ranks; not of the process that is kept for a restart."""
    engines = sorted(children(server.process.pid), key=started)[:num_engines]
    return [*engines, *(rank for engine in engines for rank in children(engine)), *actors()]


async def client(http: httpx.AsyncClient, number: int, wanted: str, seen: Counter[str], slowest: list[float]) -> None:
    while True:
        begun = time.monotonic()
        body = {"model": "m", "prompt": [5, 6, 7], "temperature": 0, "max_tokens": 24, "ignore_eos": True}
        try:
            reply = await http.post("/v1/completions", json=body)
        except httpx.TimeoutException:
            seen["hung"] += 1
            continue
        slowest.append(time.monotonic() - begun)
        if reply.status_code == 200:
            seen["right" if reply.json()["choices"][0]["text"] == wanted else "wrong"] += 1
        else:
            seen[f"status {reply.status_code}"] += 1


async def back_s(server: Server, victim: int, num_engines: int, count: int) -> float:
    """Seconds until there are as many processes again, and all of them take requests."""
    begun, again = time.monotonic(), server.output().count(AGAIN)
    found = [victim]
    while victim in found or len(found) < count or server.output().count(AGAIN) == again:
        await asyncio.sleep(0.05)
        with suppress(OSError):  # a process has ended meanwhile
            found = victims(server, num_engines)
    return time.monotonic() - begun


async def measure(server: Server, rounds: int, num_engines: int) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_S) as http:
        body = {"model": "m", "prompt": [5, 6, 7], "temperature": 0, "max_tokens": 24, "ignore_eos": True}
        wanted = (await http.post("/v1/completions", json=body)).json()["choices"][0]["text"]
        seen: Counter[str] = Counter()
        slowest: list[float] = []
        tasks = [asyncio.create_task(client(http, number, wanted, seen, slowest)) for number in range(CLIENTS)]
        for number in range(rounds):
            sign = signal.SIGSTOP if number % 2 else signal.SIGKILL
            pids = victims(server, num_engines)
            victim = pids[number // 2 % len(pids)]
            os.kill(victim, sign)
            seconds = await back_s(server, victim, num_engines, len(pids))
            right = seen["right"]
            while seen["right"] < right + 2 * CLIENTS:  # the next fault hits a server at work
                await asyncio.sleep(0.05)
            print(
                f"{sign.name}: back after {seconds:.1f} s; slowest answer so far {max(slowest):.1f} s; {dict(seen)}",
                flush=True,
            )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not seen["hung"], seen
    assert not seen["wrong"], seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1, help="ranks of one engine process, instead of two replicas")
    parser.add_argument("--executor", choices=("mp", "ray"), default="mp", help="how further ranks run")
    args = parser.parse_args()
    ranks = ("--tensor-parallel-size", args.ranks, "--distributed-executor-backend", args.executor)
    processes = ("-dp", 2) if args.ranks == 1 else ranks
    with tempfile.TemporaryDirectory() as root, ray_cluster() if args.executor == "ray" else nullcontext():
        model = tiny_llama(Path(root) / "m", seed=1)
        flags = ("--dtype", "float32", "--num-pages", "400", *processes, "--max-restarts", 100)
        with serving(f"m={model}", *flags, "--disable-access-log") as server:
            asyncio.run(measure(server, args.rounds, 2 if args.ranks == 1 else 1))


if __name__ == "__main__":
    main()
