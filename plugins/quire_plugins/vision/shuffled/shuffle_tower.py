"""The module of `ShuffledTower`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_plugins.vision.shuffled.shuffle import ShuffledTower


class ShuffledVisionModule(nn.Module):
    """Tiles to embeddings, row by row within a tile."""

    def __init__(self, width: int, part: ShuffledTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.vision = part.vision.build(builder)
        self.norm = part.norm.build(part.features, builder) if part.norm else None
        self.projector = part.projector.build(width, builder) if part.projector else None
        self.project = None if part.projector else builder.projection(part.features, width, part.bias)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows [tiles * tokens, width] of each item."""
        part, patches = self.part, self.part.vision.patches
        tiles = [len(item["pixels"]) for item in items]
        cells = call.context([count * patches.side**2 for count in tiles])
        tokens = call.context([count * patches.tokens for count in tiles], [patches.tokens] * sum(tiles))
        features = self.vision(torch.cat([item["pixels"] for item in items]), cells, tokens)
        joined = self._joined(features)
        joined = joined if self.norm is None else self.norm(joined)
        counts = [count * part.tokens for count in tiles]
        project = self.projector if self.project is None else self.project
        assert project is not None, "one of the two exists"
        rows: Tensor = project(joined, call.context(counts))
        return list(rows.split(counts))

    def _joined(self, features: Tensor) -> Tensor:
        """features [tiles, side², size] -> [tiles * tokens, size * merge²]; within a square row by row."""
        merge = self.part.merge
        side = self.part.vision.patches.side // merge
        squares = features.unflatten(1, (side, merge, side, merge))  # [tiles, side, merge, side, merge, size]
        return squares.transpose(2, 3).reshape(-1, self.part.features)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """An image of the largest number of tiles."""
        patches, tiles = self.part.vision.patches, self.part.most_tiles
        like = self.vision.patches.positions
        pixels = like.new_zeros(tiles, patches.channels, patches.tile, patches.tile)
        return {"pixels": pixels}, tiles * self.part.tokens
