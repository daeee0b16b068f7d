"""What clients of models that say one letter each may be answered, and what they were."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from connection import Connection, Reply

MAX_TOKENS = 24
GIVES_UP_S, SHARE_GIVEN_UP = 0.05, 0.03
TIMEOUT_S = 300.0


class Targets:
    """The models that one alias may stand for. A request may be answered by those that the alias has had at any time
    between the request and its answer."""

    def __init__(self, first: Sequence[str]) -> None:
        self._all, self._confirmed = [frozenset(first)], 0

    def begin(self, models: Sequence[str]) -> None:
        """The alias is about to get these models."""
        self._all.append(frozenset(models))

    def confirm(self) -> None:
        """It has them: no later request gets others."""
        self._confirmed = len(self._all) - 1

    @property
    def now(self) -> int:
        return self._confirmed

    def since(self, number: int) -> frozenset[str]:
        """The models since `now` was `number`."""
        return frozenset().union(*self._all[number:])


@dataclass
class Seen:
    """What clients were answered. answered: seconds from the begin, tokens of the prompt and of the answer."""

    letters: Mapping[str, str]
    began: float = field(default_factory=time.monotonic)
    answers: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    answered: list[tuple[float, int, int]] = field(default_factory=list)
    aliases: dict[str, Targets] = field(default_factory=dict)

    def problem(self, kind: str, what: str) -> None:
        self.answers[kind] += 1
        self.problems.append(what)

    async def ask(self, link: Connection, name: str, prompt: int, count: int, within_s: float = TIMEOUT_S) -> None:
        """Ask a model, adapter or alias for a number of tokens, and check the answer."""
        body = {"model": name, "prompt": "x" * prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
        targets = self.aliases.get(name)
        before = targets.now if targets else 0
        began = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                reply = await link.call("POST", "/v1/completions", body)
        except TimeoutError:
            if within_s < TIMEOUT_S:
                self.answers["given up"] += 1
            else:
                self.problem("lost", f"{name}: no answer in {within_s:g} s")
            return
        except (OSError, EOFError) as error:
            self.problem("lost", f"{name}: {error!r}")
            return
        now = time.monotonic()
        self.waits_s.append(now - began)
        self.answered.append((now - self.began, prompt, count))
        self._check(name, count, reply, targets.since(before) if targets else frozenset({name}))

    def _check(self, name: str, count: int, reply: Reply, allowed: frozenset[str]) -> None:
        self.answers[f"status {reply.status}"] += 1
        if reply.status != 200:
            self.problems.append(f"{name}: {reply.status} {reply.body[:300]!r}")
            return
        model = unquote(reply.headers.get("x-quire-model", name))
        text = reply.json()["choices"][0]["text"]
        if model not in allowed:
            self.problem("wrong", f"{name}: answered by {model} instead of {' or '.join(sorted(allowed))}")
        elif text != self.letters[model] * count:
            self.problem("wrong", f"{name}: {text!r} instead of {self.letters[model] * count!r}")

    async def change(self, link: Connection, method: str, path: str, body: Any = None) -> Reply | None:
        """Send a request that changes the server; None if it failed, which is noted."""
        name = path.rpartition("/")[2]
        try:
            reply = await link.call(method, path, body)
        except (OSError, EOFError) as error:
            self.problem("lost", f"{name} {body}: {error!r}")
            return None
        self.answers[f"{name} {reply.status}"] += 1
        if reply.status != 200:
            self.problems.append(f"{name} {body}: {reply.status} {reply.body[:300]!r}")
            return None
        return reply

    def found(self) -> dict[str, Any]:
        return {
            "answers": dict(self.answers),
            "problems": self.problems,
            "waits_s": self.waits_s,
            "answered": self.answered,
        }


def by_zipf(names: Sequence[str], rng: random.Random) -> str:
    return rng.choices(names, [1 / rank for rank in range(1, len(names) + 1)])[0]


async def ask_until(seen: Seen, port: int, names: Sequence[str], until: float, seed: int) -> None:
    """One client: requests one after the other, some of them given up."""
    rng, link = random.Random(seed), Connection(port)
    while time.monotonic() < until:
        within_s = GIVES_UP_S if rng.random() < SHARE_GIVEN_UP else TIMEOUT_S
        await seen.ask(link, by_zipf(names, rng), rng.randint(1, 40), rng.randint(1, MAX_TOKENS), within_s)
    link.close()


async def repeat(
    seen: Seen, port: int, names: Sequence[str], answered: Sequence[tuple[float, int, int]], clients: int
) -> None:
    """Requests of the sizes and at the times that others were answered at, of as many clients."""
    rng, due = random.Random(0), iter(answered)

    async def client() -> None:
        link = Connection(port)
        for at_s, prompt, count in due:
            await asyncio.sleep(max(0.0, seen.began + at_s - time.monotonic()))
            await seen.ask(link, by_zipf(names, rng), prompt, count)
        link.close()

    await asyncio.gather(*(client() for _ in range(clients)))
