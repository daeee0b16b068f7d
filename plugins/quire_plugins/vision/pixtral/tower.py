"""The module of `PixtralTower`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall
from quire_models.towers.grid_positions import Grid

if TYPE_CHECKING:
    from quire_plugins.vision.pixtral.encoder import PixtralTower


class PixtralModule(nn.Module):
    """Images to embeddings, one for each square of patches, row by row."""

    def __init__(self, rows_width: int, part: PixtralTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.patches = builder.projection(part.channels * part.patch**2, part.width)
        self.norm = part.norm.build(part.width, builder)
        self.blocks = nn.ModuleList(block.build(part.width, builder.at_layer(i)) for i, block in enumerate(part.blocks))
        self.merge_norm = part.merge_norm.build(part.width, builder) if part.merge_norm else None
        self.merging = builder.projection(part.width * part.merge**2, part.width) if part.merge_norm else None
        self.projector = part.projector.build(rows_width, builder)
        self._angles = builder.angles(part.rope)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows [squares, rows_width] of each item."""
        part = self.part
        grids = [self._grid(item["pixels"]) for item in items]
        context = call.context([grid.num_patches for grid in grids])
        positions = np.concatenate([grid.positions for grid in grids], 1)  # [2, patches]
        context.step_cache[self._angles] = self._angles.for_positions(
            torch.from_numpy(positions).to(self.patches.weight.device)
        )
        x = torch.cat([self._cut(item["pixels"], grid) for item, grid in zip(items, grids, strict=True)])
        x = self.norm(self.patches(x, context))
        for block in self.blocks[: part.layer]:
            x = block(x, context)
        counts = [grid.num_squares for grid in grids]
        if self.merging is not None and self.merge_norm is not None:
            squares = self.merge_norm(x).unflatten(0, (-1, part.merge**2))  # [squares, patches of a square, width]
            x = self.merging(squares.transpose(1, 2).flatten(1), call.context(counts))
        rows: Tensor = self.projector(x, call.context(counts))
        return list(rows.split(counts))

    def _grid(self, pixels: Tensor) -> Grid:
        _, height, width = pixels.shape
        return Grid(1, height // self.part.patch, width // self.part.patch, self.part.merge)

    def _cut(self, pixels: Tensor, grid: Grid) -> Tensor:
        """pixels [channels, height, width] -> [patches, channels * patch²], square by square."""
        _, rows, columns = grid.squares
        merge, patch = grid.merge, self.part.patch
        cut = pixels.unflatten(2, (columns, merge, patch)).unflatten(1, (rows, merge, patch))
        return cut.permute(1, 4, 2, 5, 0, 3, 6).reshape(grid.num_patches, -1)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """The largest square image."""
        part, like = self.part, self.patches.weight
        side = max(1, part.side // (part.patch * part.merge))
        pixels = side * part.patch * part.merge
        return {"pixels": like.new_zeros(part.channels, pixels, pixels)}, side**2
