"""The module of `TiledVisionTower`: encodes tiles and arranges the embeddings of each image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_plugins.vision.llava import TiledVisionTower


class TiledVisionModule(nn.Module):
    """Images and videos to embeddings. newline: [width], ends each line of a tiled image, and each other medium.

    A medium has `pixels` [tiles, channels, tile, tile], or `frames` of the same shape for a video. A tiled image also
    has `grid`, int64 [lines, columns], the index of the hidden state at each position, and optionally `shrunk`, int64
    [2], the lines and columns that the grid is scaled to.
    """

    def __init__(self, width: int, part: TiledVisionTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.vision = part.vision.build(builder)
        self.projector = part.projector.build(width, builder)
        self.newline = builder.parameter(width) if part.newline else None

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Returns embeddings [length, width] for each medium."""
        part, pixels = self.part.vision, [item["frames" if "frames" in item else "pixels"] for item in items]
        tiles = [len(some) for some in pixels]
        patches = call.context([count * part.patches.side**2 for count in tiles])
        tokens = call.context([count * part.patches.tokens for count in tiles], [part.patches.tokens] * sum(tiles))
        features = self.vision(torch.cat(pixels), patches, tokens)  # [tiles of all media, tokens, features]
        counts = [count * part.tokens for count in tiles]
        rows = self.projector(features.flatten(0, 1), call.context(counts)).split(counts)
        return [self._arranged(some, item) for some, item in zip(rows, items, strict=True)]

    def _arranged(self, rows: Tensor, item: Mapping[str, Tensor]) -> Tensor:
        """Arranges embeddings [tiles * tokens, width] of a medium in the order of training."""
        if "frames" in item:
            rows = self._pooled(rows)
        if "grid" in item:
            return torch.cat([rows[: self.part.vision.tokens], self._lines(rows, item)])
        return rows if self.newline is None else torch.cat([rows, self.newline[None]])

    def _lines(self, rows: Tensor, item: Mapping[str, Tensor]) -> Tensor:
        """Embeddings of tiles line by line across the tiles, with the end of each line."""
        assert self.newline is not None, "only models that have one tile pictures"
        grid = rows[item["grid"]]  # [lines, columns, width]
        if "shrunk" in item:
            grid = _scaled(grid[None], item["shrunk"].tolist())[0]
        ends = self.newline.expand(len(grid), 1, -1)
        return torch.cat([grid, ends], 1).flatten(0, 1)

    def _pooled(self, rows: Tensor) -> Tensor:
        """Frames with half as many lines and columns."""
        side = self.part.vision.patches.side
        frames = rows.view(-1, side, side, rows.shape[-1])
        half = -(-side // 2)
        return _scaled(frames, [half, half]).flatten(0, 2)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """A medium with the largest number of tiles of an image."""
        part, like = self.part.vision, self.vision.patches.positions
        side, tiles = part.patches.tile, self.part.most_tiles
        rows = tiles * part.tokens + (self.newline is not None)
        return {"pixels": like.new_zeros(tiles, part.patches.channels, side, side)}, rows


def _scaled(grids: Tensor, size: list[int]) -> Tensor:
    """Resizes grids [count, lines, columns, width] with bilinear interpolation."""
    return F.interpolate(grids.permute(0, 3, 1, 2), size=size, mode="bilinear").permute(0, 2, 3, 1)
