"""Image inputs of Llama 4: tiles of a canvas that the image fits into, and the image as a whole.

transformers has an image processor for this only with torchvision. Here Pillow scales the images.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quire.errors import CheckpointError
from quire.records import Context, MappedMedia
from quire_plugins.vision.image_processing import check_shape, check_token, processor_settings, token_id

PATCH = "<|patch|>"
NAMES = {
    "begin": "<|image_start|>",
    "end": "<|image_end|>",
    "whole": "<|image|>",
    "next_column": "<|tile_x_separator|>",
    "next_row": "<|tile_y_separator|>",
}
"""Tokens between the patches of tiles."""


class SeparatedTileProcessor:
    """Images in tiles, row by row, with tokens between them."""

    def __init__(self, context: Context, config: Any, tokens: int) -> None:
        """tokens: embeddings of a tile. Raises CheckpointError."""
        settings = processor_settings(context.folder, "image_processor", ("preprocessor_config.json",))
        self._tiles = Tiles(config.vision_config.image_size, settings)
        self._id, self._tokens = config.image_token_id, tokens
        check_token(context, PATCH, self._id, "image_token_index")
        self._ids = {name: token_id(context, token) for name, token in NAMES.items()}

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image to the ids of its tiles, then of the whole image. Raises BadRequest."""
        check_shape(item)
        pixels, (rows, columns) = self._tiles(item)
        tile, ids = [self._id] * self._tokens, [self._ids["begin"]]
        for _ in range(rows if rows * columns > 1 else 0):
            for column in range(columns):
                ids += tile if column == columns - 1 else [*tile, self._ids["next_column"]]
            ids.append(self._ids["next_row"])
        ids += [self._ids["whole"], *tile, self._ids["end"]]
        return MappedMedia(ids, {"pixels": pixels}, rows_at=np.flatnonzero(np.array(ids) == self._id))


class Tiles:
    """Cuts images into tiles of a canvas."""

    def __init__(self, side: int, settings: Mapping[str, Any]) -> None:
        """side: pixels of a tile of the model. settings: of the image processor.

        Raises CheckpointError if its tiles have another side.
        """
        self._side = side
        size = settings.get("size") or {"height": side, "width": side}
        if (size.get("height"), size.get("width")) != (side, side):
            raise CheckpointError(
                f"The image processor makes tiles of {size.get('height')} × {size.get('width')} pixels; the model reads"
                f" {side} × {side}."
            )
        self._mean, self._std = (
            np.array(settings.get(name) or [0.5] * 3, np.float32)[:, None, None] for name in ("image_mean", "image_std")
        )
        self._factor = settings.get("rescale_factor", 1 / 255)
        self._resample = Image.Resampling(settings.get("resample", Image.Resampling.BILINEAR))
        self._largest = bool(settings.get("resize_to_max_canvas", False))
        self._canvases = canvases(settings.get("max_patches", 16))

    def __call__(self, picture: Any) -> tuple[NDArray[np.float32], tuple[int, int]]:
        """Tiles [rows * columns, and one for the whole if there are several, 3, side, side], and rows and columns."""
        side, image = self._side, picture.convert("RGB")
        rows, columns = self.canvas(image.height, image.width)
        height, width = self.within(image.height, image.width, rows * side, columns * side)
        scaled = self._numbers(image.resize((width, height), self._resample))
        canvas = np.zeros((3, rows * side, columns * side), np.float32)
        canvas[:, :height, :width] = scaled
        tiles = canvas.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4).reshape(-1, 3, side, side)
        if rows * columns > 1:
            whole = self._numbers(image.resize((side, side), self._resample))
            tiles = np.concatenate([tiles, whole[None]])
        return ((tiles * np.float32(self._factor) - self._mean) / self._std).astype(np.float32), (rows, columns)

    @staticmethod
    def _numbers(image: Image.Image) -> NDArray[np.float32]:
        return np.asarray(image, np.float32).transpose(2, 0, 1)

    def canvas(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the canvas that needs the least scaling up, else down; of equal ones the smallest."""
        sides = np.array(self._canvases) * self._side
        across = sides[:, 1].astype(np.float32) / np.float32(width)
        scales = np.minimum(sides[:, 0].astype(np.float32) / np.float32(height), across)
        larger = scales[scales >= 1]
        chosen = larger.min() if len(larger) and not self._largest else scales.max()
        fitting = np.flatnonzero(scales == chosen)
        rows, columns = self._canvases[fitting[sides[fitting].prod(1).argmin()]]
        return rows, columns

    def within(self, height: int, width: int, most_height: int, most_width: int) -> tuple[int, int]:
        """The size that an image of this height and width is scaled to; it is scaled up to the side of a tile only."""
        if not self._largest:
            most_height = min(max(height, self._side), most_height)
            most_width = min(max(width, self._side), most_width)
        across, down = most_width / width, most_height / height
        if across < down:
            return max(1, min(floor(height * across), most_height)), most_width
        return most_height, max(1, min(floor(width * down), most_width))


def canvases(most_tiles: int) -> list[tuple[int, int]]:
    """Rows and columns of every canvas of at most this number of tiles; those of one shape follow each other."""
    by_shape: dict[float, list[tuple[int, int]]] = {}
    for tiles in range(most_tiles, 0, -1):
        for rows in range(1, tiles + 1):
            if tiles % rows == 0:
                by_shape.setdefault(rows / (tiles // rows), []).append((rows, tiles // rows))
    return [canvas for same in by_shape.values() for canvas in same]
