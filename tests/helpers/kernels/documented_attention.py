"""Attention of single rows, as the documentation of FlashInfer and FlashAttention says what their kernels compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def attend_rows(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    starts: Sequence[int],
    scale: float,
    window_left: int,
    softcap: float,
    slopes: Tensor | None = None,
) -> Tensor:
    """q [T, H, D]; keys, values: of each row, [context, K, D]. Masks are aligned to a row's last token and key.

    A token attends to keys up to `window_left` before its own, -1: to all.
    """
    out = torch.empty_like(q)
    for row, (k, v) in enumerate(zip(keys, values, strict=True)):
        span = slice(starts[row], starts[row + 1])
        count, context = starts[row + 1] - starts[row], len(k)
        own = torch.arange(count)[:, None] + context - count
        ahead = torch.arange(context)[None] - own
        hidden = ahead > 0
        hidden = hidden if window_left < 0 else hidden | (-ahead > window_left)
        group = q.shape[1] // k.shape[1]
        scores = torch.einsum("thd,shd->hts", q[span].float(), k.float().repeat_interleave(group, 1)) * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        scores = scores if slopes is None else scores - slopes[:, None, None] * ahead.abs()
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[span] = torch.einsum("hts,shd->thd", weights, v.float().repeat_interleave(group, 1)).to(q.dtype)
    return out
