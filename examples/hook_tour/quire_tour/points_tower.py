"""The module of `points.PointTower`; in a file of its own because it imports torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from quire_models import Make


class PointEmbedding(nn.Module):
    """Rows of embeddings for points."""

    def __init__(self, size: int, width: int, make: Make) -> None:
        super().__init__()
        self.up = make.projection(size, width, bias=True)
        self.down = make.projection(width, width, bias=True)

    def forward(self, points: Tensor) -> Tensor:
        """Points [points, size] -> [points, width]. Towers are called outside any step, hence the None."""
        return self.down(F.gelu(self.up(points, None)), None)
