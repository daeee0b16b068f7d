"""The requests of W1, W2, W3 and W5, and the questions that a worker answers. Needs the standard library only.

Requests are the same for every contender. Their lengths are the same in each repetition, their random tokens are not,
so a prefix cache of an earlier repetition does not help.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

ADAPTERS = 8
STREAM_TOKENS = 64
LONG_PROMPT = 1024


@dataclass(frozen=True)
class Request:
    """Token ids, the exact number of tokens to generate greedily, and the adapter's number, None for the base model."""

    prompt: list[int]
    max_tokens: int
    adapter: int | None = None


Run = Callable[[list[Request]], float]
"""Answers requests that arrive together; returns the seconds until all are done."""


def random_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(10, 7000) for _ in range(count)]


def one(seed: int, prompt: int, max_tokens: int) -> list[Request]:
    return [Request(random_ids(random.Random(seed), prompt), max_tokens)]


def together(rep: int) -> list[Request]:
    """W1: 32 requests at once, prompts of 16 to 128 tokens, outputs of 16 to 48."""
    rng, tokens = random.Random(0), random.Random(10_000 + rep)
    lengths = [len(random_ids(rng, rng.randint(16, 128))) for _ in range(32)]
    outputs = [rng.randint(16, 48) for _ in lengths]
    return [Request(random_ids(tokens, length), output) for length, output in zip(lengths, outputs, strict=True)]


def with_adapters(requests: list[Request]) -> list[Request]:
    return [replace(request, adapter=number % ADAPTERS) for number, request in enumerate(requests)]


def warm_up_requests(seed: int, prompt: int, max_tokens: int) -> list[Request]:
    rng = random.Random(900_000 + seed)
    return [Request(random_ids(rng, prompt), max_tokens) for _ in range(8)]


def warm_up(run: Run) -> None:
    run(one(900_000, 16, 4))
    run(warm_up_requests(1, 100, 8))


def measure(run: Run, work: str, rep: int) -> float:
    """Seconds, or tokens a second while decoding for W2. `adapters` loads those of W5.

    W2 is one stream, prompt of 64 tokens, from which the time to a first token is subtracted; W3 is a prompt of 1024
    and one token; W5 is W1 with eight adapters.
    """
    if work == "W1":
        return run(together(rep))
    if work == "W2":
        seconds = run(one(20_000 + rep, 64, STREAM_TOKENS))
        return (STREAM_TOKENS - 1) / (seconds - run(one(20_500 + rep, 64, 1)))
    if work == "W3":
        return run(one(30_000 + rep, LONG_PROMPT, 1))
    if work == "W5":
        return run(with_adapters(together(rep)))
    assert work == "adapters", work
    return run(with_adapters(warm_up_requests(5, 32, 4)))


def answer_questions(answer: Callable[[str, int], float]) -> None:
    """Answers a line {"work", "rep"} with a line RESULT {"value"} or {"error"}. Writes a first one when it is ready."""
    print('RESULT {"value": 0}', flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            reply: dict[str, float | str] = {"value": answer(question["work"], question["rep"])}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(f"RESULT {json.dumps(reply)}", flush=True)
