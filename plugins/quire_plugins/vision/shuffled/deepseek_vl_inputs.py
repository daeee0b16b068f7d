"""Image inputs of DeepSeek-VL: the image processor of transformers, which pads images to a square."""

from __future__ import annotations

from typing import Any

from quire.records import Context, MappedMedia
from quire_plugins.vision.image_processing import (
    HFImageProcessor,
    black_square,
    check_shape,
    check_side,
    check_token,
    image_marker,
)


class SquareProcessor:
    """Images of one size. marker: stands for an image in a prompt, a token that the folder may name."""

    def __init__(self, context: Context, config: Any, tokens: int) -> None:
        """tokens: embeddings of an image. Raises CheckpointError."""
        self._processor = HFImageProcessor(context)
        self._id, self._tokens = config.image_token_id, tokens
        self.marker = image_marker(context, "<image_placeholder>")
        check_token(context, self.marker, self._id, "image_token_id")
        side = config.vision_config.image_size
        check_side(self._processor(black_square(side))["pixel_values"], side)

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image to one id per patch. Raises BadRequest."""
        check_shape(item)
        return MappedMedia([self._id] * self._tokens, {"pixels": self._processor(item)["pixel_values"]})
