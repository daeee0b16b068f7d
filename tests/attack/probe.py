"""Asks /health every 10 ms and reads token streams, in a process of its own; says how late the answers were.

    python tests/attack/probe.py PORT [--no-stream]

For each line on its input it prints one line of JSON about the time since the line before: `health_ms`, the longest
wait for /health, one that goes on included; `gap_ms`, the longest between two tokens; `own_ms`, how late the probe
itself was woken (what the machine's other load takes from it); `waits`, all waits for /health, if the line says `all`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from wire import Wire

IDLE_SLEEP_S = 0.01
STREAM = {"model": "demo-chat", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True, "seed": 1}


class Longest:
    """The longest wait since the last `take`, in seconds; `since` is when the present one began."""

    def __init__(self) -> None:
        self.value, self.since, self.all = 0.0, None, list[float]()

    value: float
    since: float | None
    all: list[float]

    def begin(self) -> None:
        self.since = time.perf_counter()

    def end(self) -> None:
        if self.since is not None:
            waited = time.perf_counter() - self.since
            self.value, self.since = max(self.value, waited), None
            self.all.append(waited)

    def take(self) -> tuple[float, list[float]]:
        going_on = time.perf_counter() - self.since if self.since is not None else 0.0
        found = max(self.value, going_on), self.all
        self.value, self.all = 0.0, []
        return found


async def ask_health(wire: Wire, health: Longest) -> None:
    while True:
        health.begin()
        with suppress(TimeoutError, OSError):
            await wire.ask("GET", "/health")
        health.end()
        await asyncio.sleep(IDLE_SLEEP_S)


async def read_streams(wire: Wire, gaps: Longest) -> None:
    while True:
        try:
            status, parts = await wire.stream("/v1/completions", STREAM, 600)
            assert status == 200
            async for _ in parts:
                gaps.end()
                gaps.begin()
            gaps.since = None  # nothing is promised between two streams
        except (OSError, ValueError, AssertionError, asyncio.IncompleteReadError):
            await wire.close()
            await asyncio.sleep(0.1)


async def watch_itself(own: Longest) -> None:
    while True:
        begin = time.perf_counter()
        await asyncio.sleep(IDLE_SLEEP_S)
        own.value = max(own.value, time.perf_counter() - begin - IDLE_SLEEP_S)


async def main(port: int, streams: bool) -> None:
    gc.disable()
    with suppress(OSError):
        os.nice(-10)  # an observer must not be late itself
    health, gaps, own = Longest(), Longest(), Longest()
    tasks: list[Callable[[], Coroutine[Any, Any, None]]] = [
        lambda: ask_health(Wire(port), health),
        lambda: watch_itself(own),
    ]
    if streams:
        tasks.append(lambda: read_streams(Wire(port), gaps))
    running = [asyncio.create_task(task()) for task in tasks]
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        longest, waits = health.take()
        found = {"health_ms": longest * 1e3, "gap_ms": gaps.take()[0] * 1e3, "own_ms": own.take()[0] * 1e3}
        print(json.dumps({**found, "waits": waits} if b"all" in line else found), flush=True)
    for task in running:
        task.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures how late a server answers; reads lines from its input.")
    parser.add_argument("port", type=int)
    parser.add_argument("--no-stream", action="store_true", help="ask /health only")
    options = parser.parse_args()
    asyncio.run(main(options.port, not options.no_stream))
