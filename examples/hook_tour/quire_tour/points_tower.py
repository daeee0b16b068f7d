"""The module of `points.PointTower`, in a separate file because it imports torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall


class PointEmbedding(nn.Module):
    """Maps points to rows of embeddings with two matrices and a GELU between them."""

    def __init__(self, size: int, width: int, builder: ModuleBuilder) -> None:
        super().__init__()
        self.up = builder.projection(size, width, bias=True)
        self.down = builder.projection(width, width, bias=True)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Items with "points" [points, size] -> [points, width] for each item; all items in one product."""
        counts = [len(item["points"]) for item in items]
        context = call.context(counts)
        points = torch.cat([item["points"] for item in items])
        return list(self.down(F.gelu(self.up(points, context)), context).split(counts))
