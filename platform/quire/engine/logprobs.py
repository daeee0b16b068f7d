"""Log-probabilities as answers report them: of the model's own distribution, before any change to it.

It knows no request, only how many alternatives each row wants.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.sampling import MAX_LOGPROBS
from quire.types import TokenLogprobs

ALL = -1


def best(logprobs: Tensor, count: int) -> tuple[list[list[int]], list[list[float]]]:
    """Ids and values of the `count` largest of each row [rows, vocab], equal ones by rising id."""
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]), -1)
    ids, order = ids.sort(-1)
    values, order = values.gather(-1, order).sort(stable=True, dim=-1, descending=True)
    return ids.gather(-1, order).tolist(), values.tolist()


def describe(logprobs: Tensor, token_ids: Sequence[int], wanted: Sequence[int]) -> list[TokenLogprobs]:
    """One entry per row of `logprobs` [rows, vocab]: its token's own, its rank, and the top `wanted`.

    wanted: alternatives of each row, 0 = none, `ALL` = the whole vocabulary. However many others want,
    a row gets the same: the number looked for is fixed.
    """
    tokens = torch.tensor(token_ids, device=logprobs.device)[:, None]
    own = logprobs.gather(-1, tokens)
    rank = (logprobs > own).sum(-1) + 1
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(token_ids)
    for count in {MAX_LOGPROBS if n > 0 else n for n in wanted if n}:
        rows = [i for i, n in enumerate(wanted) if n and (n == ALL) == (count == ALL)]
        some = logprobs if len(rows) == len(logprobs) else logprobs[torch.tensor(rows, device=logprobs.device)]
        ids, values = best(some, logprobs.shape[-1] if count == ALL else count)
        for i, row_ids, row_values in zip(rows, ids, values, strict=True):
            limit = None if count == ALL else wanted[i]
            tops[i] = tuple(zip(row_ids[:limit], row_values[:limit], strict=True))
    return [TokenLogprobs(*each) for each in zip(token_ids, own[:, 0].tolist(), rank.tolist(), tops, strict=True)]
