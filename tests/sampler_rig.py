"""A sampler, and rows for it."""

from __future__ import annotations

from typing import Any

import torch

from quire.engine.constraints import Constraints
from quire.engine.logits import edits_of
from quire.engine.processors import Processors
from quire.engine.sampler import Chooser, Sampler
from quire.records import Context, LogitsProcessor, OpQuery, Registry
from quire.sampling import SamplingParams
from quire_kernels import select

VOCAB = 300
EOS = (7,)
OPS = select.choose(OpQuery("cpu", "float32"))


def make_sampler(*processors: LogitsProcessor, ops: select.Ops = OPS) -> Sampler:
    registry = Registry(records={"quire_logits_processors": {p.name: p for p in processors}})
    return Sampler(Processors(registry, lambda plugin: Context(vocab_size=VOCAB)), Constraints(registry, VOCAB), ops)


def chooser(
    prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), seed: int = 0, sampler: Any = None, **params: Any
) -> Chooser:
    made, ids = SamplingParams(**{"max_tokens": 99, **params}), list(output)
    uses = sampler._processors.start(made, ids) if sampler else ()
    return Chooser(made, seed, ids, edits_of(made, EOS, prompt, ids), uses)


def random_logits(rows: int = 1, vocab: int = VOCAB, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def one(logits: torch.Tensor, row: Chooser, sampler: Sampler | None = None) -> Any:
    sampler = sampler or make_sampler()
    (sample,) = sampler.sample(logits.clone(), [row], sampler.masks([row]))
    return sample
