"""The module of `PooledGridTower`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall
from quire_plugins.vision.gemma4.blocks import ROTATION

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.vision.gemma4.encoder import PooledGridTower

DUMMY_SIDE = 16
"""Side of the largest image in squares of pooled patches: 256 of the 280 embeddings that an image may have."""


class PooledGridModule(nn.Module):
    """Patches to embeddings, row by row. positions: [2, positions, width], of columns and of rows."""

    def __init__(self, rows_width: int, part: PooledGridTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.patches = builder.projection(3 * part.patch**2, part.width)
        self.positions = builder.parameter(2, part.positions, part.width)
        self.blocks = nn.ModuleList(block.build(part.width, builder.at_layer(i)) for i, block in enumerate(part.blocks))
        if part.standardized:
            self.std_bias, self.std_scale = builder.parameter(part.width), builder.parameter(part.width)
        self._norm = part.norm.build(part.width, builder)
        self.project = builder.projection(part.width, rows_width)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows [squares, rows_width] of each item."""
        grids = torch.stack([item["grid"] for item in items]).tolist()
        counts = [rows * columns for rows, columns in grids]
        context = call.context(counts)
        places = torch.cat([_places(rows, columns) for rows, columns in grids], 1).to(self.positions.device)
        self._rotate(context, places)
        x = self.patches(2 * (torch.cat([item["patches"] for item in items]) - 0.5), context)
        x = x + self.positions[0, places[0]] + self.positions[1, places[1]]
        for block in self.blocks:
            x = block(x, context)
        pooled = torch.cat([self._pooled(some, *grid) for some, grid in zip(x.split(counts), grids, strict=True)])
        pooled = pooled * self.part.width**0.5
        if self.part.standardized:
            pooled = (pooled - self.std_bias.float()) * self.std_scale.float()
        squares = [count // self.part.pool**2 for count in counts]
        rows: Tensor = self.project(self._norm(pooled.to(x.dtype)), call.context(squares))
        return list(rows.split(squares))

    def _rotate(self, context: TowerContext, places: Tensor) -> None:
        """Set the rotation of patches at these columns and rows, int64 [2, patches]."""
        half = self.part.blocks[0].head_dim // 2
        exponents = torch.arange(0, half, 2, dtype=torch.float32, device=places.device) / half
        angles = places.T.float()[:, None, :, None] * self.part.theta**-exponents  # [patches, 1, 2, head_dim / 4]
        context.step_cache[ROTATION] = angles.cos(), angles.sin()

    def _pooled(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """x [rows * columns, width] -> float32 [squares, width], the mean of each square."""
        pool = self.part.pool
        squares = x.float().view(rows // pool, pool, columns // pool, pool, -1)
        return squares.mean((1, 3)).flatten(0, 1)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """A square image of about the largest size."""
        side, like = DUMMY_SIDE * self.part.pool, self.positions
        patches = like.new_zeros(side**2, 3 * self.part.patch**2)
        return {"patches": patches, "grid": torch.tensor([side, side], device=like.device)}, DUMMY_SIDE**2


def _places(rows: int, columns: int) -> Tensor:
    """Column and row of each patch: int64 [2, rows * columns]."""
    column, row = torch.arange(columns).repeat(rows), torch.arange(rows).repeat_interleave(columns)
    return torch.stack([column, row])
