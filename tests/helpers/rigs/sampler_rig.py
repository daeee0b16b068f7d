"""A sampler, and rows for it."""

from __future__ import annotations

from typing import Any

import torch

from quire.engine.processors.logits_processors import LogitsProcessors
from quire.engine.sampling.logits_edits import LogitsEdits
from quire.engine.sampling.sampler import Sampler, SamplingState
from quire.engine.structured.constraint_tracker import ConstraintTracker
from quire.params.sampling import SamplingParams
from quire.records import Context, LogitsProcessor, OpQuery, Registry
from quire_kernels import select

VOCAB = 300
EOS = (7,)
OPS = select.choose(OpQuery("cpu", "float32"))


def make_sampler(*processors: LogitsProcessor, ops: select.Ops = OPS) -> Sampler:
    registry = Registry(records={"quire_logits_processors": {p.name: p for p in processors}})
    return Sampler(
        LogitsProcessors(registry, lambda plugin: Context(vocab_size=VOCAB)), ConstraintTracker(registry, VOCAB), ops
    )


def chooser(
    prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), seed: int = 0, sampler: Any = None, **params: Any
) -> SamplingState:
    made, ids = SamplingParams(**{"max_tokens": 99, **params}), list(output)
    uses = sampler._processors.start(made, ids) if sampler else ()
    edits = LogitsEdits(made, EOS, prompt, ids) if made.edits_logits else None
    return SamplingState(made, seed, ids, edits, uses)


def random_logits(rows: int = 1, vocab: int = VOCAB, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def one(logits: torch.Tensor, row: SamplingState, sampler: Sampler | None = None) -> Any:
    sampler = sampler or make_sampler()
    (sample,) = sampler.sample(logits.clone(), [row], sampler.start_masks([row]))
    return sample
