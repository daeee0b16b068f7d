"""Image inputs of DeepSeek-VL: the image processor of transformers, which pads images to a square."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.errors import CheckpointError
from quire.records import Context, MappedMedia
from quire_models.loading.json_files import read_object
from quire_plugins.vision.image_processing import HFImageProcessor, black_square, check_shape, check_side, token_id


class SquareProcessor:
    """Images of one size. marker: stands for an image in a prompt, a token that the folder may name."""

    def __init__(self, context: Context, config: Any, tokens: int) -> None:
        """tokens: embeddings of an image. Raises CheckpointError."""
        self._processor = HFImageProcessor(context)
        self._id, self._tokens = config.image_token_id, tokens
        settings = read_object(Path(str(context.folder)), "tokenizer_config.json") or {}
        named = settings.get("image_token") or (settings.get("extra_special_tokens") or {}).get("image_token")
        self.marker: str = named if isinstance(named, str) else "<image_placeholder>"
        if (found := token_id(context, self.marker)) != self._id:
            raise CheckpointError(
                f"{context.folder}: {self.marker!r} must be the token {self._id}, `image_token_id` of config.json; it"
                f" is the token {found}."
            )
        side = config.vision_config.image_size
        check_side(self._processor(black_square(side))["pixel_values"], side)

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image to one id per patch. Raises BadRequest."""
        check_shape(item)
        return MappedMedia([self._id] * self._tokens, {"pixels": self._processor(item)["pixel_values"]})
