"""Mixtures of experts in torch: tokens are sorted by expert, and only experts that some token uses are computed."""

from __future__ import annotations

import torch
from torch import Tensor

from quire_kernels.reference_moe import ReferenceExperts


class SortedExperts(ReferenceExperts):
    """`ops.MoeOp` with one product for all tokens of an expert."""

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x [T, W]; weights float32 and chosen int64 [T, J] -> [T, W], data type of x."""
        experts, order = chosen.reshape(-1).sort(stable=True)
        if self.mlp.first is not None:
            experts = experts - self.mlp.first
            held = (experts >= 0) & (experts < self.count)
            experts, order = experts[held], order[held]
        tokens = order // chosen.shape[1]
        factors = weights.reshape(-1).index_select(0, order)[:, None]
        given = x.index_select(0, tokens)
        if self.mlp.weighs_inputs:
            given = (given * factors).to(x.dtype)
        active, counts = experts.unique_consecutive(return_counts=True)
        pieces = [x.new_empty(0, x.shape[1])]
        for expert, part in zip(active.tolist(), given.split(counts.tolist()), strict=True):
            pieces.append(self.product(True, expert, self.activate(self.product(False, expert, part))))
        y = torch.cat(pieces).float()
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        return out.index_add_(0, tokens, y if self.mlp.weighs_inputs else y.mul_(factors)).to(x.dtype)
