"""Positions of the patches of an image or video, in numpy: in the grid, in its windows, and for a decoder.

`quire_models.parts.patch_grid` defines the order of the patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """The patch grid of one item. frames, height, width: counted in patches; merge: side of a square."""

    frames: int
    height: int
    width: int
    merge: int

    @property
    def squares(self) -> tuple[int, int, int]:
        """Frames, rows and columns of squares."""
        return self.frames, self.height // self.merge, self.width // self.merge

    @property
    def num_patches(self) -> int:
        return self.frames * self.height * self.width

    @property
    def num_squares(self) -> int:
        """Number of squares, which is the item's number of embedding rows."""
        return self.num_patches // self.merge**2

    @property
    def frame_lens(self) -> list[int]:
        """Patches of each frame."""
        return [self.height * self.width] * self.frames

    @cached_property
    def positions(self) -> Ids:
        """Row and column of each patch: int64 [2, patches]."""
        _, rows, columns = self.squares
        shape = self.frames, rows, columns, self.merge, self.merge
        row = self.merge * np.arange(rows)[:, None, None, None] + np.arange(self.merge)[:, None]
        column = self.merge * np.arange(columns)[:, None, None] + np.arange(self.merge)
        return np.stack([np.broadcast_to(each, shape).reshape(-1) for each in (row, column)])

    def windows(self, side: int) -> tuple[Ids, list[int]]:
        """Squares in window order, int64 [squares], and the number of patches of each window.

        side: of a window, in squares; windows at the right and bottom edges may be smaller.
        """
        frames, rows, columns = self.squares
        across, down = -(-columns // side), -(-rows // side)
        frame = np.arange(frames)[:, None, None] * down * across
        window = frame + (np.arange(rows) // side)[:, None] * across + np.arange(columns) // side
        counts = np.bincount(window.reshape(-1)) * self.merge**2
        return np.argsort(window, axis=None, kind="stable"), counts.tolist()


def grid_positions(squares: tuple[int, int, int], interval: float = 1.0) -> Ids:
    """Positions of an item's rows for a decoder with rotary axes time, height and width: int64 [3, squares].

    squares: frames, rows and columns. interval: positions from one frame to the next.
    """
    time, row, column = np.indices(squares).reshape(3, -1)
    moved = time.astype(np.float32) * np.float32(interval)
    return np.stack([moved.astype(np.int64), row, column])
