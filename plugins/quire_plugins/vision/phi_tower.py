"""The module of `CropsTower`: encodes crops and arranges the embeddings line by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_plugins.vision.phi import CropsTower


class CroppedVisionModule(nn.Module):
    """Images to embeddings.

    An image has `pixels` [1 + lines * columns, channels, side, side], the image scaled to one crop and then its crops
    line by line, and `grid`, int64 [2]: lines, columns. newline, separator: [4 * features], learned, after each line of
    squares, and between the whole image and its crops.
    """

    def __init__(self, width: int, part: CropsTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.vision = part.vision.build(builder)
        self.projector = part.projector.build(width, builder)
        self.newline = builder.parameter(part.projector.inputs)
        self.separator = builder.parameter(part.projector.inputs)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Returns embeddings [length, width] for each medium."""
        part, pixels = self.part.vision, [item["pixels"] for item in items]
        crops = [len(some) for some in pixels]
        patches = call.context([count * part.patches.side**2 for count in crops])
        tokens = call.context([count * part.patches.tokens for count in crops], [part.patches.tokens] * sum(crops))
        squares = self._squares(self.vision(torch.cat(pixels), patches, tokens)).split(crops)
        lined = [self._lined(some, item["grid"].tolist()) for some, item in zip(squares, items, strict=True)]
        counts = [len(rows) for rows in lined]
        return list(self.projector(torch.cat(lined), call.context(counts)).split(counts))

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
        """Flattens [lines, columns, 4 * features] and adds the end of each line."""
        return torch.cat([lines, self.newline.expand(len(lines), 1, -1)], 1).flatten(0, 1)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """An image with the largest number of crops."""
        from quire_plugins.vision.phi import MAX_CROPS

        part, like = self.part.vision.patches, self.newline
        pixels = like.new_zeros(1 + MAX_CROPS, part.channels, part.tile, part.tile)
        grid = torch.tensor([MAX_CROPS, 1], device=like.device)
        return {"pixels": pixels, "grid": grid}, self.part.rows(MAX_CROPS, 1)
