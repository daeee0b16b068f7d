"""Image inputs of Phi-3-vision: images are scaled to whole crops, padded with white and cut.

The checkpoints contain code for this, which is not run; this module follows their technical reports.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError, ConfigError
from quire.records import Context, MappedMedia
from quire_models.loading.json_files import read_object
from quire_plugins.vision.image_processing import check_shape
from quire_plugins.vision.phi import MAX_CROPS

if TYPE_CHECKING:
    from quire_plugins.vision.phi import CropsTower

PICTURE = 32044
"""The token for images in the published vocabulary."""

WHITE = (255, 255, 255)
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and standard deviation of colours in CLIP's training."""


def crops_of(width: int, height: int, most: int) -> int:
    """Number of crops along the longer side of an image with at most `most` crops."""
    ratio = max(width, height) / min(width, height)
    return max(long for long in range(1, most + 1) if long * ceil(long / ratio) <= most)


class CropImageProcessor:
    """Images as a whole and in crops."""

    def __init__(self, context: Context, tower: CropsTower) -> None:
        """Raises CheckpointError for invalid settings of the folder, ConfigError for an invalid option."""
        assert context.folder is not None, "a mapper is built for a model"
        assert context.vocab_size is not None, "a mapper is built for a model"
        settings = read_object(Path(context.folder), "preprocessor_config.json") or {}
        self._tower, self._side = tower, tower.vision.patches.tile
        self._id = min(PICTURE, context.vocab_size - 1)
        self._most = self._choose(settings.get("num_crops", 1), context.options["crops"])
        self._mean, self._std = (_colours(settings, name, usual) for name, usual in (("mean", MEAN), ("std", STD)))

    @staticmethod
    def _choose(of_folder: Any, wanted: int) -> int:
        if not 0 <= wanted <= MAX_CROPS:
            raise ConfigError(f"--phi.crops must be from 0 to {MAX_CROPS}; got {wanted}.")
        if isinstance(of_folder, bool) or not isinstance(of_folder, int) or not 1 <= of_folder <= MAX_CROPS:
            raise CheckpointError(
                f"preprocessor_config.json: `num_crops` must be from 1 to {MAX_CROPS}, got {of_folder!r:.40}."
            )
        return wanted or of_folder

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image. Raises BadRequest for one that is too narrow."""
        check_shape(item)
        pixels = self._normal(self._fitted(item))
        lines, columns = (length // self._side for length in pixels.shape[1:])
        tensors = {"pixels": self._cut(pixels, lines, columns), "grid": np.array([lines, columns], np.int64)}
        return MappedMedia(ids=[self._id] * self._tower.rows(lines, columns), tensors=tensors)

    def _fitted(self, picture: Any) -> Any:
        """Scales the longer side of the image to whole crops and pads the other side to whole crops."""
        from PIL import Image, ImageOps

        upright = picture.width < picture.height
        if upright:
            picture = picture.transpose(Image.Transpose.TRANSPOSE)
        width = self._side * crops_of(picture.width, picture.height, self._most)
        height = max(1, int(width / (picture.width / picture.height)))
        scaled = picture.resize((width, height), Image.Resampling.BILINEAR)
        missing = -height % self._side
        padded = ImageOps.expand(scaled, (0, missing // 2, 0, missing - missing // 2), fill=WHITE)
        return padded.transpose(Image.Transpose.TRANSPOSE) if upright else padded

    def _normal(self, picture: Any) -> NDArray[np.float32]:
        """Normalizes colours; returns [channels, height, width]."""
        values: NDArray[np.float32] = (np.asarray(picture, np.float32) / np.float32(255) - self._mean) / self._std
        return values.transpose(2, 0, 1)

    def _cut(self, pixels: NDArray[np.float32], lines: int, columns: int) -> NDArray[np.float32]:
        """Returns [1 + lines * columns, channels, side, side]: the image scaled to one crop, then its crops."""
        import torch
        import torch.nn.functional as F

        side = self._side
        whole = F.interpolate(torch.from_numpy(np.ascontiguousarray(pixels))[None], (side, side), mode="bicubic")
        crops = pixels.reshape(-1, lines, side, columns, side).transpose(1, 3, 0, 2, 4)
        return np.concatenate([whole.numpy(), crops.reshape(-1, *whole.shape[1:])])


def _colours(settings: Any, name: str, usual: tuple[float, ...]) -> NDArray[np.float32]:
    given = settings.get(f"image_{name}", usual)
    if not isinstance(given, list | tuple) or len(given) != 3 or not all(isinstance(v, int | float) for v in given):
        raise CheckpointError(f"preprocessor_config.json: `image_{name}` must be three numbers, got {given!r:.60}.")
    return np.array(given, np.float32)
