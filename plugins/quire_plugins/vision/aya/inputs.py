"""Image inputs of Aya Vision: the image processor of transformers, and the text around each tile."""

from __future__ import annotations

from typing import Any

from quire.records import Context, MappedMedia, MappedText
from quire_plugins.vision.image_processing import HFImageProcessor, black_square, check_shape, check_side, check_token

MARK = "<|IMG_PATCH|>"


class NumberedTileProcessor:
    """Images in tiles, each after its number, and as a whole."""

    def __init__(self, context: Context, config: Any, tokens: int) -> None:
        """tokens: embeddings per tile. Raises CheckpointError."""
        self._processor = HFImageProcessor(context)
        self._id, self._tokens = config.image_token_id, tokens
        check_token(context, MARK, self._id, "image_token_index")
        side = config.vision_config.image_size
        check_side(self._processor(black_square(side), crop_to_patches=True)["pixel_values"], side)

    def map(self, item: Any) -> MappedText:
        """Maps a Pillow image to ids in text: for its tiles, row by row, and for the whole image. Raises BadRequest."""
        check_shape(item)
        tiles = self._processor(item, crop_to_patches=True)["pixel_values"]
        media = [MappedMedia([self._id] * self._tokens, {"pixels": tile[None]}) for tile in tiles]
        numbered = "".join(f"TILE_{number}{MARK}" for number in range(1, len(tiles)))
        return MappedText(f"<|START_OF_IMG|>{numbered}TILE_GLOBAL{MARK}<|END_OF_IMG|>", MARK, media)
