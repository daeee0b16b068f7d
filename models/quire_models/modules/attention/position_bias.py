"""Biases of relative positions as attention reads them: one number for each head and distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_kernels.attention import PositionBiases

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.attention.position_bias import PositionBias


class PositionBiasTable(nn.Module):
    """The module that the part `parts.attention.position_bias.PositionBias` builds; weight [buckets, heads]."""

    def __init__(self, heads: int, part: PositionBias, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.weight = builder.parameter(part.buckets, heads)

    def by_distance(self) -> PositionBiases:
        """`biases` of the attention ops."""
        ahead = torch.arange(-self.part.reach, self.part.reach + 1, device=self.weight.device)
        return PositionBiases(self.weight.data.float()[self._bucket(ahead)].T.contiguous())

    def _bucket(self, ahead: Tensor) -> Tensor:
        """The bucket of each distance, int64."""
        part, buckets = self.part, self.part.buckets
        first = torch.zeros_like(ahead)
        if part.bidirectional:
            buckets //= 2
            first = (ahead > 0) * buckets
            distance = ahead.abs()
        else:
            distance = (-ahead).clamp(min=0)
        exact = buckets // 2
        steps = torch.log(distance.float() / exact) / math.log(part.reach / exact) * (buckets - exact)
        ranges = exact + steps.clamp(min=0).long()
        return first + torch.where(distance < exact, distance, ranges.clamp(max=buckets - 1))
