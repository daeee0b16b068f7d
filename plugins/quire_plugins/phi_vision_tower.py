"""The module of `phi_vision.CropsTower`: sees crops of pictures, and puts what it sees line by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models import Items, Make, TowerCall

if TYPE_CHECKING:
    from quire_plugins.phi_vision import CropsTower


class CropsToRows(nn.Module):
    """Pictures as rows of embeddings.

    A picture has `pixels` [1 + lines * columns, channels, side, side], itself scaled to one crop before its crops line
    by line, and `grid`, int64 [2]: lines, columns. newline, separator: [4 * features], learned, after each line of
    squares, and between the picture as a whole and its crops.
    """

    def __init__(self, width: int, part: CropsTower, make: Make) -> None:
        super().__init__()
        self.part = part
        self.vision = part.vision.build(make)
        self.projector = part.projector.build(width, make)
        self.newline = make.parameter(part.projector.inputs)
        self.separator = make.parameter(part.projector.inputs)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows [length, width] of each."""
        part, pixels = self.part.vision, [item["pixels"] for item in items]
        crops = [len(some) for some in pixels]
        patches = call.stage([count * part.patches.side**2 for count in crops])
        tokens = call.stage([count * part.patches.tokens for count in crops], [part.patches.tokens] * sum(crops))
        squares = self._squares(self.vision(torch.cat(pixels), patches, tokens)).split(crops)
        lined = [self._lined(some, item["grid"].tolist()) for some, item in zip(squares, items, strict=True)]
        counts = [len(rows) for rows in lined]
        return list(self.projector(torch.cat(lined), call.stage(counts)).split(counts))

    def _squares(self, features: Tensor) -> Tensor:
        """[crops, side * side, features] -> [crops, side / 2, side / 2, 4 * features]."""
        half = self.part.side
        grid = features.unflatten(1, (half, 2, half, 2))  # [crops, line, row in it, column, column in it, features]
        return grid.permute(0, 1, 3, 2, 4, 5).flatten(3)

    def _lined(self, squares: Tensor, grid: list[int]) -> Tensor:
        """[1 + crops, half, half, 4 * features] -> [rows, 4 * features]."""
        lines, columns = grid
        crops = squares[1:].unflatten(0, (lines, columns)).transpose(1, 2)  # [lines, half, columns, half, 4 * features]
        pieces = [self._ended(crops.flatten(2, 3).flatten(0, 1)), self._ended(squares[0])]
        if self.part.whole_first:
            pieces.reverse()
        return torch.cat([pieces[0], self.separator[None], pieces[1]])

    def _ended(self, lines: Tensor) -> Tensor:
        """[lines, columns, 4 * features] one after another, each with its end."""
        return torch.cat([lines, self.newline.expand(len(lines), 1, -1)], 1).flatten(0, 1)

    def example(self) -> tuple[Mapping[str, Tensor], int]:
        """A picture of as many crops as there may be."""
        from quire_plugins.phi_vision import MOST_CROPS

        part, like = self.part.vision.patches, self.newline
        pixels = like.new_zeros(1 + MOST_CROPS, part.channels, part.tile, part.tile)
        grid = torch.tensor([MOST_CROPS, 1], device=like.device)
        return {"pixels": pixels, "grid": grid}, self.part.rows(MOST_CROPS, 1)
