"""Engines on tiny models, for tests: build one, give it requests, gather what each seq got."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from scheduler_invariants import check_scheduler

from quire.engine.build import build_engine
from quire.engine.engine import Engine
from quire.engine.parallel.leader import Launch
from quire.hooks import registry
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt, Request, SeqDelta

Params = SamplingParams | BeamSearchParams


@dataclass
class Answer:
    """All deltas of one seq, put together."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    deltas: list[SeqDelta] = field(default_factory=list)

    @property
    def last(self) -> SeqDelta:
        return self.deltas[-1]


class Rig:
    """An engine and the requests of one test."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._next = 0

    def add(self, prompt: Sequence[int] | Prompt, params: Params | None = None, **request: Any) -> str:
        self._next += 1
        whole = prompt if isinstance(prompt, Prompt) else Prompt(token_ids=tuple(prompt))
        made = {"id": f"r{self._next}", "prompt": whole, **request}
        self.engine.add(Request(params=params or greedy(), **made))
        return str(made["id"])

    def drain(self) -> dict[tuple[str, int], Answer]:
        """Step until nothing is left; answers by request id and index."""
        answers: dict[tuple[str, int], Answer] = defaultdict(Answer)
        steps = 0
        while self.engine.has_work:
            steps += 1
            assert steps < 20_000, "the engine does not come to an end"
            for delta in self.engine.step():
                answer = answers[delta.request_id, delta.index]
                answer.token_ids += delta.token_ids
                answer.logprobs += delta.logprobs or ()
                answer.deltas.append(delta)
            check_scheduler(self.engine._scheduler)
        return answers

    def tokens(self, prompts: Sequence[Sequence[int]], params: Params | Sequence[Params]) -> list[list[int]]:
        """Output of each prompt's only seq; every one must have ended well."""
        each = params if isinstance(params, Sequence) else [params] * len(prompts)
        ids = [self.add(prompt, param) for prompt, param in zip(prompts, each, strict=True)]
        answers = self.drain()
        for request_id in ids:
            assert answers[request_id, 0].last.finish_reason in ("stop", "length"), answers[request_id, 0].last
        return [answers[request_id, 0].token_ids for request_id in ids]


def greedy(max_tokens: int | None = 16, **params: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, **params)


@cache
def bundled() -> Registry:
    """The bundled plugins, loaded once for all engines that are to have no others."""
    return registry.load(None)


def make_rig(folder: Path, found: Registry | None = None, launch: Launch | None = None, **settings: Any) -> Rig:
    """float32 on the CPU and steps of 13 tokens, unless `settings` say otherwise. launch: starts ranks.

    Pages have 16 tokens, as those of users. With 4, blocks are not compiled, and torch computes attention.
    """
    defaults: Mapping[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "page_size": 16,
        "num_pages": 256,
        "max_num_batched_tokens": 13,
        "max_num_seqs": 40,
        "served_model_name": ("tiny",),
    }
    config = ModelConfig(model=str(folder), **{**defaults, **settings})
    return Rig(build_engine(config, found or bundled(), tokenizer=lambda: Tokenizer.load(folder), launch=launch))


@contextmanager
def rig_of(folder: Path, found: Registry | None = None, **settings: Any) -> Iterator[Rig]:
    """An engine that is closed at the end. settings: as of `make_rig`."""
    rig = make_rig(folder, found, **settings)
    try:
        yield rig
    finally:
        rig.engine.close()


def random_ids(rng: random.Random, count: int, vocab: int = 256) -> list[int]:
    return [rng.randrange(vocab) for _ in range(count)]


def related_prompts(count: int = 8, seed: int = 0, vocab: int = 256) -> list[list[int]]:
    """Prompts of 4 to 40 tokens, many of which begin alike, at and off the borders of pages."""
    rng = random.Random(seed)
    shared = random_ids(rng, 21, vocab)
    return [
        shared[: rng.choice([0, 4, 8, 11, 16, 21])] + random_ids(rng, rng.randrange(4, 20), vocab) for _ in range(count)
    ]
