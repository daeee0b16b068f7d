"""Draws drafts as the sampler will draw the tokens: with the random numbers of the same seeds and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.engine.sampling.rng import uniforms
from quire.engine.speculation.distribution import distribution, draw
from quire.engine.speculation.draft_model.draft_cache import DraftSeq
from quire_kernels.select import Ops


class DraftSampler:
    """vocab_size: of the target; the draft model may have rows for padding beyond it. wants_probs: keep the
    distributions that drafts of sampled requests are drawn from.

    Penalties, grammars and the like are not applied: without them drafts are wrong more often, but not the output.
    """

    def __init__(self, module: Any, ops: Ops, vocab_size: int, wants_probs: bool) -> None:
        self.module, self.ops, self.vocab_size, self.wants_probs = module, ops, vocab_size, wants_probs

    def start(self, seqs: Sequence[DraftSeq]) -> DraftDraws:
        """Draws of a step for these sequences."""
        return DraftDraws(self, seqs)


class DraftDraws:
    """The draws of one step: one for each of its sequences at a time."""

    def __init__(self, sampler: DraftSampler, seqs: Sequence[DraftSeq]) -> None:
        self._sampler, self._seqs = sampler, list(seqs)
        self.are_greedy = not any(seq.sampling.draw_params[0] for seq in seqs)
        if not self.are_greedy:
            self._params = np.array([seq.sampling.draw_params for seq in seqs], np.float64)
            self._seeds = np.array([seq.sampling.seed for seq in seqs], np.uint64)
            self._counts = np.array([seq.num_output for seq in seqs], np.int64)

    def keep(self, rows: list[int]) -> None:
        """Go on with some of the sequences."""
        self._seqs = [self._seqs[row] for row in rows]
        if not self.are_greedy:
            self._params, self._seeds, self._counts = self._params[rows], self._seeds[rows], self._counts[rows]

    def draw(self, hidden: Tensor, adapters: Any) -> list[int]:
        """The next draft of each sequence: -1 where there is none. hidden: [sequences, width]. adapters: as bound for
        the head."""
        module, size = self._sampler.module, self._sampler.vocab_size
        if self.are_greedy:
            return self.known(module.argmax(hidden, adapters))
        logits = module.logits(hidden, adapters)
        if logits.shape[-1] > size:
            logits = logits[:, :size].contiguous()
        uniform = uniforms(self._seeds, self._counts)
        self._counts += 1
        if self._sampler.wants_probs:
            return self._draw_with_probs(logits, uniform)
        temperature, top_k, top_p, min_p = self._params.T
        drawn: list[int] = self._sampler.ops.sample(
            logits, temperature, uniform, top_k.astype(np.int64), top_p, min_p
        ).tolist()
        return drawn

    def known(self, tokens: list[int]) -> list[int]:
        """The tokens, -1 for those that the target does not have."""
        size = self._sampler.vocab_size
        return [token if token < size else -1 for token in tokens]

    def _draw_with_probs(self, logits: Tensor, uniform: NDArray[np.float64]) -> list[int]:
        """Like `draw`, and adds to `DraftSeq.probs` of sampled sequences. logits: [sequences, at most vocab_size]"""
        probs = distribution(logits, [seq.sampling.draw_params for seq in self._seqs])
        tokens = draw(probs, torch.from_numpy(uniform).to(probs.device))
        found: list[int] = torch.where(probs.sum(-1).isfinite(), tokens, -1).tolist()
        padding = self._sampler.vocab_size - logits.shape[-1]
        rows = torch.nn.functional.pad(probs.float(), (0, padding))
        for seq, token, row in zip(self._seqs, found, rows, strict=True):
            if token >= 0 and seq.sampling.draw_params[0]:
                seq.probs.append(row)
        return found
