"""Draws drafts as the sampler will draw the tokens: with the random numbers of the same seeds and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from quire.engine.sampling.rng import uniforms
from quire.engine.speculation.draft_model.draft_cache import DraftSeq
from quire_kernels.select import Ops


class DraftSampler:
    """vocab_size: of the target; the draft model may have rows for padding beyond it.

    Penalties, grammars and the like are not applied: they make drafts wrong more often, never output.
    """

    def __init__(self, module: Any, ops: Ops, vocab_size: int) -> None:
        self._module, self._ops, self._vocab_size = module, ops, vocab_size

    def draw(self, hidden: Tensor, seqs: Sequence[DraftSeq]) -> list[int]:
        """The next draft of each sequence: -1 where there is none. hidden: [len(seqs), width]"""
        temperature, top_k, top_p, min_p = np.array([seq.sampling.draw_params for seq in seqs], np.float64).T
        if not temperature.any():
            found: list[int] = self._module.argmax(hidden)
            return [token if token < self._vocab_size else -1 for token in found]
        logits = self._module.logits(hidden)
        if logits.shape[-1] > self._vocab_size:
            logits = logits[:, : self._vocab_size].contiguous()
        seeds = np.array([seq.sampling.seed for seq in seqs], np.uint64)
        counts = np.array([seq.num_output + len(seq.drafts) for seq in seqs], np.int64)
        drawn: Tensor = self._ops.sample(
            logits, temperature, uniforms(seeds, counts), top_k.astype(np.int64), top_p, min_p
        )
        return drawn.tolist()
