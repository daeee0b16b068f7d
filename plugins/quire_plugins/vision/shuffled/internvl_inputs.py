"""Image inputs of InternVL: the image processor of transformers, with tiles, and the ids of each image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.records import Context, MappedMedia
from quire_models.loading.json_files import read_object
from quire_plugins.vision.image_processing import (
    HFImageProcessor,
    black_square,
    check_shape,
    check_side,
    check_token,
    token_id,
)

NAMES = {"start_image_token": "<img>", "end_image_token": "</img>"}
"""Fields of tokenizer_config.json and the names in published folders."""


class InternTileProcessor:
    """Images in tiles and as a whole, between two tokens of their own. marker: stands for an image in a prompt."""

    def __init__(self, context: Context, image_id: int, tokens: int, side: int) -> None:
        """tokens: embeddings per tile; side: pixels. Raises CheckpointError."""
        self._processor = HFImageProcessor(context)
        self._id, self._tokens = image_id, tokens
        settings = read_object(Path(str(context.folder)), "tokenizer_config.json") or {}
        settings = {**settings, **(settings.get("extra_special_tokens") or {})}
        self.marker: str = settings.get("context_image_token") or "<IMG_CONTEXT>"
        check_token(context, self.marker, image_id, "image_token_id")
        self._begin, self._end = (token_id(context, settings.get(field) or name) for field, name in NAMES.items())
        check_side(self._processor(black_square(side), crop_to_patches=True)["pixel_values"], side)

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image to the ids of its tiles, row by row, then of the whole image. Raises BadRequest."""
        check_shape(item)
        return self._mapped(self._processor(item, crop_to_patches=True)["pixel_values"])

    def map_tile(self, item: Any) -> MappedMedia:
        """Maps a Pillow image, scaled to one tile."""
        return self._mapped(self._processor(item, crop_to_patches=False)["pixel_values"])

    def _mapped(self, pixels: NDArray[np.float32]) -> MappedMedia:
        count = len(pixels) * self._tokens
        ids = [self._begin, *[self._id] * count, self._end]
        return MappedMedia(ids=ids, tensors={"pixels": pixels}, rows_at=np.arange(1, count + 1))
