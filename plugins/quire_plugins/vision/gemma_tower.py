"""The module of `PooledTower`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_plugins.vision.gemma import PooledTower


class PooledVisionModule(nn.Module):
    """Images to embeddings. A medium has `pixels` [1, channels, tile, tile]."""

    def __init__(self, width: int, part: PooledTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.vision = part.vision.build(builder)
        self.norm = part.norm.build(part.vision.width, builder)
        self.project = builder.projection(part.vision.width, width)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Returns embeddings [tokens, width] for each medium."""
        side, count = self.part.vision.patches.side, len(items)
        patches = call.context([side**2] * count)
        features = self.vision(torch.cat([item["pixels"] for item in items]), patches, patches)
        grids = features.transpose(1, 2).unflatten(2, (side, side))  # [pictures, features, side, side]
        pooled = F.avg_pool2d(grids, self.part.square).flatten(2).transpose(1, 2)  # [pictures, tokens, features]
        tokens = self.part.tokens
        rows = self.project(self.norm(pooled).flatten(0, 1), call.context([tokens] * count))
        return list(rows.split(tokens))

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """An image: all have equally many embeddings."""
        patches = self.part.vision.patches
        return {
            "pixels": self.vision.patches.positions.new_zeros(1, patches.channels, patches.tile, patches.tile)
        }, self.part.tokens
