"""Log-probabilities as responses report them: of the model's own distribution, before any change to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quire.types import TokenLogprobs
from quire_kernels.sampling import LogprobsOp

ALL = -1

PROMPT_LOGPROBS_BATCH = 64
"""Prompt positions scored at a time: their logits over the vocabulary would else be the largest tensors of a step."""


def token_logprobs(
    logprobs: LogprobsOp, logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """For each row of `logits` [rows, vocab] float32: the logprob and rank of its token, and the `num_top` most likely.

    logprobs: the op. num_top: alternatives of each row, 0 = none, `ALL` = the whole vocabulary.
    """
    entries: dict[int, TokenLogprobs] = {}
    for is_all in (False, True):
        rows = [i for i, count in enumerate(num_top) if (count == ALL) == is_all]
        if not rows:
            continue
        batch = logits if len(rows) == len(num_top) else logits[torch.tensor(rows, device=logits.device)]
        tokens = [token_ids[i] for i in rows]
        top = logits.shape[-1] if is_all else max(num_top[i] for i in rows)
        found = logprobs(batch, torch.tensor(tokens, device=logits.device), top)
        for i, token, own, rank, ids, values in zip(rows, tokens, *(each.tolist() for each in found), strict=True):
            count = top if is_all else num_top[i]
            entries[i] = TokenLogprobs(token, own, rank, tuple(zip(ids[:count], values[:count], strict=True)))
    return [entries[i] for i in range(len(num_top))]


def no_logits(hidden: Tensor, adapters: Any = None) -> Tensor:
    """Stands in the place of the head of a model that has none."""
    raise AssertionError("requests that need logits are refused by a model without an LM head")
