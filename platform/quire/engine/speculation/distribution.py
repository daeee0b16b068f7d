"""The distributions that `quire_kernels.sampling.SampleOp` draws from, as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def distribution(logits: Tensor, draw_params: Sequence[tuple[float, float, float, float]]) -> Tensor:
    """Probabilities float64 [rows, vocab] of logits [rows, vocab].

    draw_params: temperature above 0, top_k, top_p and min_p of each row. Tokens of equal probability stay or go
    together, as in the op. Each row needs a finite logit.
    """
    values = torch.tensor(np.array(draw_params, np.float64), device=logits.device)
    temperature, top_k, top_p, min_p = values.unsqueeze(-1).unbind(1)
    scaled = logits.double()
    scaled = (scaled - scaled.amax(-1, keepdim=True)) / temperature.clamp(min=torch.finfo(torch.float32).tiny)
    p = torch.softmax(scaled, -1)
    if not ((top_k > 0) | (top_p < 1) | (min_p > 0)).any():
        return p
    ordered = p.sort(-1, descending=True).values
    lowest = ordered[:, :1] * min_p
    vocab = p.shape[-1]
    last = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab).long() - 1
    kth = ordered.gather(1, last)
    lowest = torch.maximum(lowest, torch.where(last < vocab - 1, kth, 0.0))
    kept = torch.where((ordered >= kth) | (last == vocab - 1), ordered, 0.0).cumsum(-1)
    nucleus = (kept < kept[:, -1:] * top_p).sum(-1, keepdim=True).clamp(max=vocab - 1)
    lowest = torch.maximum(lowest, torch.where(top_p < 1, ordered.gather(1, nucleus), 0.0))
    p = torch.where(p >= lowest, p, 0.0)
    return p / p.sum(-1, keepdim=True)


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """A token per row by inverse CDF in id order: int64 [rows]. weights: [rows, vocab]. uniform: [rows], in [0, 1)."""
    cumulative = weights.cumsum(-1)
    target = cumulative[:, -1:] * uniform[:, None]
    last = (cumulative < cumulative[:, -1:]).sum(-1)  # where rounding lets the target reach the sum
    return torch.minimum((cumulative <= target).sum(-1), last)
