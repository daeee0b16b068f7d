"""Log-probabilities as answers report them: of the model's own distribution, before any change to it.

It knows no request, only how many alternatives each row wants.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.types import TokenLogprobs
from quire_kernels.sampling import Logprobs

ALL = -1


def describe(
    logprobs: Logprobs, logits: Tensor, token_ids: Sequence[int], wanted: Sequence[int]
) -> list[TokenLogprobs]:
    """One entry per row of `logits` [rows, vocab] float32: its token's own, its rank, and the top `wanted`.

    logprobs: the operation. wanted: alternatives of each row, 0 = none, `ALL` = the whole vocabulary.
    """
    entries: dict[int, TokenLogprobs] = {}
    for everything in (False, True):
        rows = [i for i, count in enumerate(wanted) if (count == ALL) == everything]
        if not rows:
            continue
        some = logits if len(rows) == len(wanted) else logits[torch.tensor(rows, device=logits.device)]
        tokens = [token_ids[i] for i in rows]
        top = logits.shape[-1] if everything else max(wanted[i] for i in rows)
        found = logprobs(some, torch.tensor(tokens, device=logits.device), top)
        for i, token, own, rank, ids, values in zip(rows, tokens, *(each.tolist() for each in found), strict=True):
            count = top if everything else wanted[i]
            entries[i] = TokenLogprobs(token, own, rank, tuple(zip(ids[:count], values[:count], strict=True)))
    return [entries[i] for i in range(len(wanted))]
