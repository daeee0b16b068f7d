"""Attention with what torch's fused call does not support."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.attention import PositionBiases, Stripes


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores become weights: the options of `paged_attention`."""

    scale: float
    softcap: float | None
    sinks: Tensor | None
    slopes: Tensor | None
    biases: PositionBiases | None
    stripes: Stripes | None

    @property
    def is_plain(self) -> bool:
        """Whether torch's fused attention computes it."""
        others = (self.softcap, self.sinks, self.slopes, self.biases, self.stripes)
        return all(option is None for option in others)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, firsts: Tensor, positions: Tensor) -> Tensor:
        """q [count, H, length, D], k and v [count, K, keys, …] -> [count, H, length, V].

        mask: added to the scores. firsts: positions of the first keys, int64 [count]. positions: of the tokens, int64
        [count, length]; both on the CPU.
        """
        count, heads, length, dim = q.shape
        kv_heads, keys, cap = k.shape[1], k.shape[2], self.softcap
        folded = q.reshape(count, kv_heads, -1, dim)  # query heads of a group share their keys
        found = torch.matmul(folded, k.transpose(2, 3)).float().mul_(self.scale if cap is None else self.scale / cap)
        if cap is not None:
            found = found.tanh_().mul_(cap)
        found = found.view(count, heads, length, keys)
        self._add_by_position(found, firsts[:, None] + torch.arange(keys), positions)
        if mask is not None:
            found.add_(mask)
        if self.sinks is not None:
            column = self.sinks.float()[:, None, None].expand(count, heads, length, 1)
            weights = torch.cat((found, column), -1).softmax(-1)[..., :-1]
        else:
            weights = found.softmax(-1)
        out = torch.matmul(weights.reshape(count, kv_heads, -1, keys).to(v.dtype), v)
        return out.view(count, heads, length, v.shape[-1])

    def _add_by_position(self, found: Tensor, keys: Tensor, positions: Tensor) -> None:
        """Add to the scores [count, H, length, keys] what depends on positions. keys: those of the keys."""
        keys, positions = keys[:, None].to(found.device), positions[:, :, None].to(found.device)
        if self.slopes is not None:
            found.add_(self.slopes.float()[:, None, None] * (keys - positions)[:, None])
        if self.biases is not None:
            found.add_(self.biases.at(keys - positions).transpose(0, 1))
        if self.stripes is not None:
            block, local, stride, step, first = self.stripes
            near = positions // block - keys // block < local  # [count, length, keys]
            shifts = (torch.arange(found.shape[1], device=found.device) + first)[:, None, None] * step + 1
            found.masked_fill_(~(near[:, None] | ((keys[:, None] // block + shifts) % stride == 0)), -torch.inf)
