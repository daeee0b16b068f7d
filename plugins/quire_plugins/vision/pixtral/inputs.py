"""Image inputs of Pixtral and Mistral 3: the image processor of transformers, and the ids of each image.

[IMG][IMG][IMG][IMG_BREAK]      one line of embeddings; the tokens that end lines keep their own embeddings
[IMG][IMG][IMG][IMG_END]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quire.errors import BadRequest
from quire.records import Context, MappedMedia
from quire_models.loading.json_files import read_object
from quire_plugins.vision.image_processing import HFImageProcessor, check_shape, token_id

NAMES = {"image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
"""Fields of processor_config.json and their defaults in transformers."""


class PixtralImageProcessor:
    """Images scaled to whole squares of patches. marker: what stands for an image in a prompt."""

    def __init__(self, context: Context, image_id: int, square: int) -> None:
        """square: pixels per side of the square behind one embedding.

        Raises CheckpointError for a folder without an image processor or without the tokens that end lines.
        """
        self._processor = HFImageProcessor(context)
        self._id, self._square = image_id, square
        settings = read_object(Path(str(context.folder)), "processor_config.json") or {}
        self.marker: str = settings.get("image_token") or "[IMG]"
        self._break, self._end = (token_id(context, settings.get(field) or default) for field, default in NAMES.items())

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image to one id per embedding, and one for the end of each line. Raises BadRequest."""
        check_shape(item)
        try:
            made = self._processor(item, patch_size={"height": self._square, "width": self._square})
        except ValueError as error:
            raise BadRequest(f"The picture cannot be used: {error}.", "image") from error
        pixels = made["pixel_values"][0]
        lines, columns = (side // self._square for side in pixels.shape[1:])
        ids = np.full((lines, columns + 1), self._id)
        ids[:, -1] = self._break
        ids[-1, -1] = self._end
        places = np.arange(ids.size).reshape(ids.shape)[:, :-1].reshape(-1)
        return MappedMedia(ids=ids.reshape(-1).tolist(), tensors={"pixels": pixels}, rows_at=places)
