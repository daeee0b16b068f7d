"""Image inputs of Gemma 3: the image processor of transformers, and the text around each image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.records import Context, MappedMedia, MappedText
from quire_plugins.vision.image_processing import HFImageProcessor, black_square, check_side, check_token

MARK = "<image_soft_token>"
"""Placeholder of the embeddings of an image in a text."""

PICTURE = f"\n\n<start_of_image>{MARK}<end_of_image>\n\n"
"""Text around an image or a crop of it."""

CROPPING = {
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
"""Defaults of pan and scan in transformers, for processors that enable it without settings."""


class GemmaImageProcessor:
    """Scales images to a square; with pan and scan also crops long images."""

    def __init__(self, context: Context, config: Any, tokens: int) -> None:
        """tokens: embeddings per image. Raises CheckpointError."""
        self._processor = HFImageProcessor(context)
        self._settings = {name: value for name, value in CROPPING.items() if self._processor.setting(name) is None}
        self._id, self._tokens = config.image_token_id, tokens
        if context.tokenizer is not None:
            check_token(context, MARK, self._id, "image_token_index")
        side = config.vision_config.image_size
        check_side(self._pixels(black_square(side)), side)

    def _pixels(self, picture: Any) -> NDArray[np.float32]:
        """Returns [1 + crops, channels, tile, tile]."""
        pixels: NDArray[np.float32] = self._processor(picture, **self._settings)["pixel_values"]
        return pixels

    def map(self, item: Any) -> MappedText:
        """Maps a Pillow image to ids in text: for the whole image, and for its crops."""
        pixels = self._pixels(item)
        media = [MappedMedia([self._id] * self._tokens, {"pixels": tile[None]}) for tile in pixels]
        text = PICTURE
        if len(media) > 1:
            parts = " ".join([PICTURE] * (len(media) - 1))
            text = f"Here is the original image {PICTURE} and here are some crops to help you see better {parts}"
        return MappedText(text, MARK, media)
