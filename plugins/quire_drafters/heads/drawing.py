"""Draws drafts as the model would draw the same tokens: with their random numbers, and the request's parameters.

So a drafter with the model's distribution drafts the very token that the model samples, also above temperature 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quire.engine.sampling.rng import MASK64, uniforms
from quire.engine.speculation.distribution import distribution
from quire.plugin import DraftQuery
from quire_kernels.select import Ops

_MAX_TOP_K = 2**31  # above any vocabulary size


class TokenDraws:
    """The draws of some queries.

    all_greedy: each takes the most likely token. wants_probs: keep the distributions drawn from in `probs`.
    """

    def __init__(self, queries: Sequence[DraftQuery], wants_probs: bool = False) -> None:
        params = [query.params for query in queries]
        self.all_greedy = all(each.greedy for each in params)
        self._sampled = [i for i, each in enumerate(params) if wants_probs and not each.greedy]
        self._probs: list[Tensor] = []  # of each draft: [sampled queries, vocab]
        if self.all_greedy:
            return  # no draw reads the parameters
        self._temperature = np.array([0.0 if each.greedy else each.temperature for each in params])
        self._top_k = np.array([min(each.top_k, _MAX_TOP_K) for each in params], np.int64)
        self._top_p = np.array([each.top_p for each in params], np.float64)
        self._min_p = np.array([each.min_p for each in params], np.float64)
        self._seeds = np.array([query.seed & MASK64 for query in queries], np.uint64)
        self._counts = np.array([len(query.token_ids) - query.prompt_len for query in queries], np.int64)

    def draw(self, ops: Ops, logits: Tensor, ahead: int, token_ids: Tensor | None = None, vocab: int = 0) -> list[int]:
        """The draft number `ahead`, from 0, of each query; -1 where no token is possible.

        logits: float32 [queries, columns], which may be overwritten. token_ids: int64 [columns], the tokens of the
        columns among `vocab`; None if column i is token i.
        """
        if self.all_greedy:
            greedy: list[int] = ops.argmax(logits).tolist()
            return greedy
        uniform = uniforms(self._seeds, self._counts + ahead)
        if self._sampled:
            self._probs.append(self._distribution(logits, token_ids, vocab))
        drawn: list[int] = ops.sample(
            logits, self._temperature, uniform, self._top_k, self._top_p, self._min_p
        ).tolist()
        return drawn

    def _distribution(self, logits: Tensor, token_ids: Tensor | None, vocab: int) -> Tensor:
        """float32 [sampled queries, vocab]"""
        rows = self._sampled
        columns = (self._temperature, self._top_k, self._top_p, self._min_p)
        params = list(zip(*(column[rows].tolist() for column in columns), strict=True))
        probs = distribution(logits[torch.tensor(rows, device=logits.device)], params).float()
        if token_ids is None:
            return probs
        return probs.new_zeros(len(rows), vocab).index_copy_(1, token_ids, probs)

    def probs(self, query: int, count: int) -> Tensor | None:
        """The distributions of the first `count` drafts of a query, [count, vocab]; None if they were certain."""
        if query not in self._sampled or not count:
            return None
        row = self._sampled.index(query)
        return torch.stack([each[row] for each in self._probs[:count]])


def until_impossible(token_ids: Sequence[int], vocab: int) -> list[int]:
    """The tokens before the first that is none."""
    if not token_ids or 0 <= min(token_ids) <= max(token_ids) < vocab:
        return list(token_ids)
    return list(token_ids[: next(i for i, token in enumerate(token_ids) if not 0 <= token < vocab)])
