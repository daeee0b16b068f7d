"""Clients of streams that cost little, in processes of their own, so that they delay neither each other nor the server.

A client asks for a stream of `/v1/completions`, reads bytes and counts tokens without parsing JSON. Its next stream
begins when the last one ends, or streams begin at the times of a Poisson process.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

TOKEN_IDS = re.compile(rb'"token_ids":\s*\[([^\]]+)\]')
END = b"data: [DONE]"


@dataclass(frozen=True)
class Load:
    """Streams of one key: of `clients` that each ask when their last stream has ended, or `rate` a second that begin at
    random times, which `seed` decides.

    answer_tokens: the mean. An answer has from half as many to one and a half, evenly distributed: those of equal
    length would begin and end in the same steps if one client asks for all of them.
    """

    key: str
    prompt_tokens: int
    answer_tokens: int
    clients: int = 0
    rate: float = 0.0
    seed: int = 0


@dataclass
class Service:
    """What a load got within the measured time. tokens: of prompts whose answer began, and of answers."""

    tokens: int = 0
    first_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Phase:
    """When to measure: `seconds`, after `warm_s`."""

    port: int
    model: str
    warm_s: float
    seconds: float


class _Clients:
    """The clients of one load. begins_at: when to measure begins."""

    def __init__(self, phase: Phase, load: Load, begins_at: float) -> None:
        self.service = Service()
        self._phase, self._load, self._begins_at = phase, load, begins_at
        self._ends_at = begins_at + phase.seconds

    async def run(self) -> None:
        """Ask until the measured time is over."""
        if not self._load.rate:
            await asyncio.gather(*(self._ask_again_and_again() for _ in range(self._load.clients)))
            return
        gaps = random.Random(self._load.seed)
        async with asyncio.TaskGroup() as asking:
            due = time.monotonic() + gaps.expovariate(self._load.rate)
            while due < self._ends_at:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                asking.create_task(self._ask(due))
                due += gaps.expovariate(self._load.rate)

    async def _ask_again_and_again(self) -> None:
        while time.monotonic() < self._ends_at:
            await self._ask(time.monotonic())

    async def _ask(self, asked_at: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._phase.port)
        writer.write(self._request())
        is_first, rest = True, b""
        while data := await reader.read(65536):
            *events, rest = (rest + data).split(b"\n\n")
            count = sum(found.count(b",") + 1 for event in events for found in TOKEN_IDS.findall(event))
            now = time.monotonic()
            if count and is_first:
                is_first = False
                count += self._load.prompt_tokens
                if asked_at >= self._begins_at:
                    self.service.first_s.append(now - asked_at)
            if self._begins_at <= now < self._ends_at:
                self.service.tokens += count
            if now >= self._ends_at or any(END in event for event in events):
                break
        else:
            raise RuntimeError(f"a stream ended early: {rest[:200]!r}")
        writer.close()

    def _request(self) -> bytes:
        ids = random.choices(range(100, 300), k=self._load.prompt_tokens)  # differs, so that no prefix is cached
        mean = self._load.answer_tokens
        answer_tokens = random.randint(mean // 2, mean + mean // 2)
        body = {"model": self._phase.model, "prompt": ids, "max_tokens": answer_tokens}
        body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._load.key}\r\n"
        head += f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        return head.encode() + data


async def _run(phase: Phase, loads: Sequence[Load]) -> list[Service]:
    begins_at = time.monotonic() + phase.warm_s
    clients = [_Clients(phase, load, begins_at) for load in loads]
    await asyncio.gather(*(each.run() for each in clients))
    return [each.service for each in clients]


def _work(phase: Phase, loads: Sequence[Load], results: Connection) -> None:
    results.send(asyncio.run(_run(phase, loads)))


def measure(phase: Phase, *processes: Sequence[Load]) -> list[list[Service]]:
    """Run loads at once, those of each sequence in a process of their own, and return what each got."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in processes]
    running = [
        context.Process(target=_work, args=(phase, loads, sender))
        for loads, (_, sender) in zip(processes, pipes, strict=True)
    ]
    for process in running:
        process.start()
    for _, sender in pipes:
        sender.close()  # a client that fails then ends `recv` with EOFError
    results = [receiver.recv() for receiver, _ in pipes]
    for process in running:
        process.join()
    return results
