"""The module of `AdaptedTower`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall
from quire_models.towers.tower import TowerContext

if TYPE_CHECKING:
    from quire_plugins.vision.llama4.llama4 import AdaptedTower


class AdaptedVisionModule(nn.Module):
    """Tiles to embeddings, row by row within a tile."""

    def __init__(self, width: int, part: AdaptedTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        self.vision = part.vision.build(builder)
        self.up = builder.projection(part.vision.features * part.merge**2, part.inner)
        self.down = builder.projection(part.inner, part.outputs)
        self.project = builder.projection(part.outputs, width)
        self._angles = builder.angles(part.rope)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows [tiles * tokens, width] of each item."""
        part, patches = self.part, self.part.vision.patches
        tiles = [len(item["pixels"]) for item in items]
        cells = call.context([count * patches.side**2 for count in tiles])
        tokens = call.context([count * patches.tokens for count in tiles], [patches.tokens] * sum(tiles))
        self._place(tokens, sum(tiles))
        features = self.vision(torch.cat([item["pixels"] for item in items]), cells, tokens)
        counts = [count * part.tokens for count in tiles]
        joined = call.context(counts)
        x = self._ops.act(self.up(self._joined(features), joined), "gelu")
        rows: Tensor = self.project(self._ops.act(self.down(x, joined), "gelu"), joined)
        return list(rows.split(counts))

    def _place(self, tokens: TowerContext, tiles: int) -> None:
        """Set the rotary angles of the class token, which has none, and of the patches of each tile."""
        side, device = self.part.vision.patches.side, self.up.weight.device
        columns = torch.arange(side, device=device).repeat(side) + 1
        rows = torch.arange(side, device=device).repeat_interleave(side) + 1
        positions = torch.stack([columns, rows])  # [2, side²]
        positions = torch.cat([positions.new_zeros(2, 1), positions], 1).repeat(1, tiles)
        tokens.step_cache[self._angles] = self._angles.for_positions(positions)

    def _joined(self, features: Tensor) -> Tensor:
        """features [tiles, side², size] -> [tiles * tokens, size * merge²]; within a square row by row."""
        merge = self.part.merge
        side = self.part.vision.patches.side // merge
        squares = features.unflatten(1, (side, merge, side, merge))  # [tiles, side, merge, side, merge, size]
        return squares.transpose(2, 3).flatten(3).flatten(0, 2)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """An image of the largest number of tiles."""
        from quire_plugins.vision.llama4.llama4 import MAX_TILES

        patches = self.part.vision.patches
        like = self.vision.patches.positions
        pixels = like.new_zeros(MAX_TILES, patches.channels, patches.tile, patches.tile)
        return {"pixels": pixels}, MAX_TILES * self.part.tokens
