"""Positions of the patches of an image that was scaled, padded and cut into tiles, without the patches of padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

SLACK = 1.1
"""A grid is scaled down when each side is larger than allowed by this factor."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a model cuts images.

    tile: pixels per side of a tile. side: patches per side of a tile. tokens: hidden states per tile. sizes: [height,
    width] that an image may be scaled and padded to. most: tiles that the patches of all lines may fill; None for no
    limit.
    """

    tile: int
    side: int
    tokens: int
    sizes: Sequence[Sequence[int]]
    most: int | None = None

    @property
    def most_tiles(self) -> int:
        """Tiles per image, including the whole image."""
        return 1 + max((height // self.tile) * (width // self.tile) for height, width in self.sizes)

    def grid(self, height: int, width: int) -> NDArray[np.int64]:
        """Index of the hidden state at each position of an image of this size, int64 [lines, columns].

        The first tile, the whole image, is not included. Positions that contain only padding are omitted.
        """
        from transformers.image_processing_utils import select_best_resolution

        down, across = (length // self.tile for length in select_best_resolution((height, width), list(self.sizes)))
        places = np.arange(self.side**2).reshape(1, 1, self.side, self.side) + (self.tokens - self.side**2)
        tiles = np.arange(1, 1 + down * across).reshape(down, across, 1, 1) * self.tokens
        whole = (tiles + places).swapaxes(1, 2).reshape(down * self.side, across * self.side)
        return whole[kept(height, width, *whole.shape)].astype(np.int64)

    def shrunk(self, lines: int, columns: int) -> tuple[int, int] | None:
        """Lines and columns that a grid is scaled down to; None if it is small enough."""
        if self.most is None:
            return None
        ratio = sqrt(lines * columns / (self.most * self.side**2))
        return (int(lines // ratio), int(columns // ratio)) if ratio > SLACK else None


def kept(height: int, width: int, lines: int, columns: int) -> tuple[slice, slice]:
    """Lines and columns of a grid that contain the image when it is scaled to fit and centred."""
    if width / height > columns / lines:
        padding = (lines - int(round(height * (columns / width), 7))) // 2
        return slice(padding, lines - padding), slice(columns)
    padding = (columns - int(round(width * (lines / height), 7))) // 2
    return slice(lines), slice(padding, columns - padding)
