"""A batch behind streams: how much later their tokens come, and whether a killed server loses or repeats answers.

    python tests/benchmarks/batch_behind_streams.py [--lines 10000] [--streams 8] [--seconds 20] [--turns 3]

First the streams alone, then beside a batch, in alternating turns: the 99th percentiles of the time to the first token
and of the gaps between tokens, and their ratios (the bound is 1.2). Then the whole batch behind the streams; the server
is killed (SIGKILL) when half of it is answered, and started again. Exit status 1 if a ratio is over the bound, or if a
line has no answer or more than one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "attack"))

from demos import FLAGS
from serving import Server, serving
from wire import Wire

BOUND = 1.2
FORM = "multipart/form-data; boundary=x"
STREAM_TOKENS, LINE_TOKENS = 64, 16
POLL_S = 0.5


@dataclass
class Times:
    """Seconds that streams waited: for the first token, and between tokens."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def p99(self) -> tuple[float, float]:
        return _p99(self.first), _p99(self.gaps)


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))] if values else float("nan")


def chat(text: str, max_tokens: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": True}


class Streams:
    """Clients that each ask for the next stream when one has ended. times: of the current phase."""

    def __init__(self, port: int, model: str, number: int) -> None:
        self.times, self._port, self._model, self._numbers = Times(), port, model, count()
        self._tasks = [asyncio.create_task(self._run()) for _ in range(number)]

    async def _run(self) -> None:
        wire = Wire(self._port)
        while True:
            body = {**chat(f"What is {next(self._numbers)} plus 30?", STREAM_TOKENS), "model": self._model}
            body |= {"stream": True, "skip_special_tokens": False}  # so that each token has an event
            with suppress(OSError, ValueError, asyncio.IncompleteReadError, TimeoutError):
                await self._read(wire, body)
                continue
            await wire.close()
            await asyncio.sleep(0.2)  # the server is being started again

    async def _read(self, wire: Wire, body: dict[str, Any]) -> None:
        begin = last = time.perf_counter()
        status, parts = await wire.stream("/v1/chat/completions", body, 600)
        if status != 200:
            raise ValueError(status)
        times, seen = self.times, 0
        async for part in parts:
            now = time.perf_counter()
            if b'"content"' not in part:
                continue
            seen += 1
            if seen == 2:  # the first one has the role alone
                times.first.append(now - begin)
            elif seen > 2:
                times.gaps.append(now - last)
            last = now

    async def phase(self, seconds: float) -> Times:
        """What the streams measure from now on."""
        self.times = Times()
        await asyncio.sleep(seconds)
        return self.times

    async def end(self) -> None:
        running = set(self._tasks)
        while running:  # `asyncio.wait_for` of Python 3.11 may swallow a cancellation
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=1)


async def asked(
    port: int,
    method: str,
    path: str,
    body: bytes = b"",
    kind: str = "application/json",
    statuses: Sequence[int] = (200,),
) -> bytes:
    wire = Wire(port)
    answer = await wire.ask(method, path, body, kind)
    await wire.close()
    assert answer.status in statuses, (path, answer.status, answer.body[:500])
    return answer.body


async def begin_batch(port: int, model: str, lines: int) -> str:
    """The id of a batch that is in progress."""
    url = "/v1/chat/completions"
    rows = [
        {
            "custom_id": f"{i}",
            "method": "POST",
            "url": url,
            "body": {**chat(f"What is {i} plus 5?", LINE_TOKENS), "model": model},
        }
        for i in range(lines)
    ]
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    form += b'--x\r\nContent-Disposition: form-data; name="file"; filename="lines"\r\n\r\n' + content + b"\r\n--x--\r\n"
    file_id = json.loads(await asked(port, "POST", "/v1/files", form, FORM))["id"]
    asking = {"input_file_id": file_id, "endpoint": url, "completion_window": "24h"}
    batch_id: str = json.loads(await asked(port, "POST", "/v1/batches", json.dumps(asking).encode()))["id"]
    while (await state(port, batch_id))["status"] == "validating":
        await asyncio.sleep(0.05)
    return batch_id


async def state(port: int, batch_id: str) -> dict[str, Any]:
    return json.loads(await asked(port, "GET", f"/v1/batches/{batch_id}"))


async def compare(server: Server, options: argparse.Namespace) -> bool:
    """Turns without and with a batch; whether the medians of the ratios are within the bound."""
    streams = Streams(server.port, options.model, options.streams)
    await streams.phase(5.0)
    ratios: list[tuple[float, float]] = []
    for turn in range(options.turns):
        alone = await streams.phase(options.seconds)
        batch_id = await begin_batch(server.port, options.model, options.lines)
        await streams.phase(2.0)
        before = (await state(server.port, batch_id))["request_counts"]["completed"]
        beside = await streams.phase(options.seconds)
        after = (await state(server.port, batch_id))["request_counts"]["completed"]
        await asked(server.port, "POST", f"/v1/batches/{batch_id}/cancel", statuses=(200, 400))  # 400: it has ended
        await streams.phase(2.0)
        (first, gap), (first_beside, gap_beside) = alone.p99(), beside.p99()
        ratios.append((first_beside / first, gap_beside / gap))
        print(
            f"turn {turn}: first token {first * 1e3:.1f} → {first_beside * 1e3:.1f} ms ({ratios[-1][0]:.2f}), "
            f"gap {gap * 1e3:.1f} → {gap_beside * 1e3:.1f} ms ({ratios[-1][1]:.2f}), "
            f"{len(alone.gaps) / options.seconds:.0f} → {len(beside.gaps) / options.seconds:.0f} tokens/s, "
            f"batch {(after - before) / options.seconds:.1f} lines/s",
            flush=True,
        )
    await streams.end()
    medians = [sorted(ratio[kind] for ratio in ratios)[len(ratios) // 2] for kind in (0, 1)]
    print(f"medians of the ratios: first token {medians[0]:.2f}, gap {medians[1]:.2f} (bound {BOUND})", flush=True)
    return max(medians) <= BOUND


async def until(port: int, batch_id: str, is_reached: Any) -> dict[str, Any]:
    while True:
        with suppress(AssertionError, ValueError):
            found = await state(port, batch_id)
            if is_reached(found):
                return found
        await asyncio.sleep(POLL_S)


async def half(server: Server, options: argparse.Namespace) -> str:
    """Begins the whole batch behind streams; returns when half of it is answered."""
    streams = Streams(server.port, options.model, options.streams)
    batch_id = await begin_batch(server.port, options.model, options.lines)
    found = await until(server.port, batch_id, lambda b: b["request_counts"]["completed"] >= options.lines // 2)
    print(f"killed at {found['request_counts']}", flush=True)
    server.process.kill()
    await streams.end()
    return batch_id


async def rest(server: Server, options: argparse.Namespace, batch_id: str) -> bool:
    """The other half after the restart; whether each line has one answer."""
    streams = Streams(server.port, options.model, options.streams)
    done = await until(server.port, batch_id, lambda b: b["status"] in ("completed", "failed"))
    await streams.end()
    content = await asked(server.port, "GET", f"/v1/files/{done['output_file_id']}/content")
    answers = Counter(json.loads(line)["custom_id"] for line in content.splitlines())
    whole = answers == Counter(str(i) for i in range(options.lines))
    seconds = done["completed_at"] - done["created_at"]
    print(f"{done['status']}: {done['request_counts']} after {seconds} s; each line once: {whole}", flush=True)
    return whole


def main(options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        words = (options.model, *FLAGS, "--batches.folder", folder)
        with serving(*words) as server:
            good = asyncio.run(compare(server, options)) if options.turns else True
            batch_id = asyncio.run(half(server, options))
        with serving(*words) as server:
            return asyncio.run(rest(server, options, batch_id)) and good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measures streams beside a batch, and kills the server in its middle.")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--model", default="demo-chat")
    sys.exit(int(not main(parser.parse_args())))
