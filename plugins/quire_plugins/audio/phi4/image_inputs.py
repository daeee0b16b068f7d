"""Image inputs of Phi-4 multimodal: images are scaled to whole crops, padded with white and cut."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BadRequest, CheckpointError
from quire.records import Context, MappedMedia
from quire_plugins.audio.audio_settings import extractor_settings
from quire_plugins.vision.image_processing import check_shape

if TYPE_CHECKING:
    from quire_plugins.audio.phi4.image_encoder import Phi4ImageTower

WHITE = (255, 255, 255)
USUAL_CROPS, MAX_CROPS = 36, 64
"""Default and largest possible limit of crops (`dynamic_hd`)."""

SMALLEST = 10
"""Pixels of a side after scaling; images that would be narrower are refused, as in transformers."""


def grid_of(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """Columns and lines of crops: as many as the image covers, or those of the most similar shape."""
    columns, lines = ceil(width / side), ceil(height / side)
    if columns * lines <= most:
        return columns, lines
    shapes = {(i, j) for i in range(1, most + 1) for j in range(1, most // i + 1)}
    best, smallest = (1, 1), float("inf")
    for shape in sorted(shapes, key=lambda one: (one[0] * one[1], one)):
        differs = abs(width / height - shape[0] / shape[1])
        covers = width * height > 0.5 * side * side * shape[0] * shape[1]
        if differs < smallest or (differs == smallest and covers):
            best, smallest = shape, min(differs, smallest)
    return best


class Phi4ImageProcessor:
    """Images as a whole and in crops."""

    def __init__(self, context: Context, token_id: int, part: Phi4ImageTower) -> None:
        """Raises CheckpointError for invalid settings of the folder."""
        settings = extractor_settings(context, "image_processor")
        self._id, self._part = token_id, part
        self._most = settings.get("dynamic_hd", USUAL_CROPS)
        if isinstance(self._most, bool) or not isinstance(self._most, int) or not 1 <= self._most <= MAX_CROPS:
            raise CheckpointError(
                f"preprocessor_config.json: `dynamic_hd` must be from 1 to {MAX_CROPS}, got {self._most!r:.40}."
            )

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image. Raises BadRequest for one that is too narrow."""
        check_shape(item)
        part = self._part
        columns, lines = grid_of(item.width, item.height, part.crop, self._most)
        pixels, free = self._fitted(item, columns * part.crop, lines * part.crop)
        rows, across = (lines * part.side - free[1] // part.patch, columns * part.side - free[0] // part.patch)
        real = [(part.side, part.side)] + [
            (_within(rows, line, part.side), _within(across, column, part.side))
            for line in range(lines)
            for column in range(columns)
        ]
        tensors = {
            "pixels": self._cut(pixels, lines, columns),
            "real": np.array(real, np.int64),
            "grid": np.array([lines, columns], np.int64),
        }
        squares = [
            sum((count + 1) // 2 for count in counts)
            for counts in ([one[0] for one in real[1::columns]], [one[1] for one in real[1 : 1 + columns]])
        ]
        return MappedMedia(ids=[self._id] * part.rows(*squares), tensors=tensors)

    def _fitted(self, picture: Any, width: int, height: int) -> tuple[NDArray[np.float32], tuple[int, int]]:
        """The picture scaled into a rectangle and padded at the right or below: values from -1 to 1, [channels, height,
        width], and the padding of both sides in pixels.
        """
        from PIL import Image

        scale = min(width / picture.width, height / picture.height)
        wide = width / picture.width < height / picture.height
        size = (width, int(picture.height * scale)) if wide else (int(picture.width * scale), height)
        if min(size) < SMALLEST:
            raise BadRequest(f"The picture is too narrow: scaled, it has {size[0]} × {size[1]} pixels.", "image")
        page = Image.new("RGB", (width, height), WHITE)
        page.paste(picture.resize(size, Image.Resampling.BILINEAR), (0, 0))
        values = np.asarray(page, np.float32).transpose(2, 0, 1) / np.float32(255)
        return (values - np.float32(0.5)) / np.float32(0.5), (width - size[0], height - size[1])

    def _cut(self, pixels: NDArray[np.float32], lines: int, columns: int) -> NDArray[np.float32]:
        """[1 + lines * columns, channels, crop, crop]: the image scaled to one crop, then its crops."""
        import torch
        from torch.nn.functional import interpolate

        side = self._part.crop
        whole = interpolate(torch.from_numpy(np.ascontiguousarray(pixels))[None], (side, side), mode="bicubic")
        crops = pixels.reshape(-1, lines, side, columns, side).transpose(1, 3, 0, 2, 4)
        return np.concatenate([whole.numpy(), crops.reshape(-1, *whole.shape[1:])])


def _within(count: int, crop: int, side: int) -> int:
    """How many of the first `count` patches of a line lie in its `crop`-th crop."""
    return max(0, min(side, count - crop * side))
