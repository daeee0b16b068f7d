"""Image inputs of Idefics 3 and SmolVLM: the image processor of transformers, and the text around each tile."""

from __future__ import annotations

from typing import Any

from quire.records import Context, MappedMedia, MappedText
from quire_plugins.vision.image_processing import HFImageProcessor, black_square, check_shape, check_side, check_token

MARK, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"


class TaggedTileProcessor:
    """Images in tiles, each after a tag with its row and column, and as a whole."""

    def __init__(self, context: Context, config: Any, tokens: int) -> None:
        """tokens: embeddings per tile. Raises CheckpointError."""
        self._processor = HFImageProcessor(context)
        self._id, self._tokens = config.image_token_id, tokens
        if context.tokenizer is not None:
            check_token(context, MARK, self._id, "image_token_id")
        side = config.vision_config.image_size
        check_side(self._processor(black_square(side))["pixel_values"][0], side)

    def map(self, item: Any) -> MappedText:
        """Maps a Pillow image to ids in text: for its tiles, row by row, and for the whole image. Raises BadRequest."""
        check_shape(item)
        made = self._processor(item, return_row_col_info=True)
        media = [MappedMedia([self._id] * self._tokens, {"pixels": tile[None]}) for tile in made["pixel_values"][0]]
        rows, columns = (int(made[name][0][0]) for name in ("rows", "cols"))
        lines = (
            "".join(f"{AROUND}<row_{row}_col_{column}>{MARK}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        )
        whole = f"{AROUND}{WHOLE}{MARK}{AROUND}"
        text = "".join(lines) + f"\n{whole}" if rows or columns else whole
        return MappedText(text, MARK, media)
