"""Draws drafts as the sampler will draw the tokens: with the random numbers of the same seeds and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from quire.engine.runner.input_batch import Int64Array
from quire.engine.sampling.rng import uniforms
from quire.engine.speculation.draft_model.draft_cache import DraftSeq
from quire_kernels.select import Ops


class DraftSampler:
    """vocab_size: of the target; the draft model may have rows for padding beyond it.

    Penalties, grammars and the like are not applied: without them drafts are wrong more often, but not the output.
    """

    def __init__(self, module: Any, ops: Ops, vocab_size: int) -> None:
        self.module, self.ops, self.vocab_size = module, ops, vocab_size

    def start(self, seqs: Sequence[DraftSeq]) -> DraftDraws:
        return DraftDraws(self, seqs)


class DraftDraws:
    """The draws of one step for some sequences."""

    def __init__(self, sampler: DraftSampler, seqs: Sequence[DraftSeq]) -> None:
        self._sampler = sampler
        self._params = np.array([seq.sampling.draw_params for seq in seqs], np.float64).T
        self._all_greedy = not self._params[0].any()
        self._seeds = np.array([seq.sampling.seed for seq in seqs], np.uint64)
        self._counts = np.array([seq.num_output for seq in seqs], np.int64)

    def draw(self, hidden: Tensor, rows: Int64Array, count: int) -> list[int]:
        """The next drafts of the sequences `rows`, which have `count` each: -1 where there is none.

        hidden: [len(rows), width]
        """
        module, size = self._sampler.module, self._sampler.vocab_size
        if self._all_greedy:
            found: list[int] = module.argmax(hidden)
            return [token if token < size else -1 for token in found]
        logits = module.logits(hidden)
        if logits.shape[-1] > size:
            logits = logits[:, :size].contiguous()
        temperature, top_k, top_p, min_p = self._params[:, rows]
        uniform = uniforms(self._seeds[rows], self._counts[rows] + count)
        drawn = self._sampler.ops.sample(logits, temperature, uniform, top_k.astype(np.int64), top_p, min_p)
        return drawn.tolist()
