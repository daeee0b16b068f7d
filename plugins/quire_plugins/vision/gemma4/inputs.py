"""Image inputs of Gemma 4: the image processor of transformers, and the ids of each image."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.errors import BadRequest, CheckpointError
from quire.records import Context, MappedMedia
from quire_plugins.vision.image_processing import HFImageProcessor, check_shape, check_token, image_marker


class PatchProcessor:
    """Images scaled to whole squares of patches. marker: stands for an image in a prompt, as the folder may name it."""

    def __init__(self, context: Context, config: Any) -> None:
        """Raises CheckpointError if the folder and the model disagree."""
        self._processor = HFImageProcessor(context)
        self._id, self._begin, self._end = config.image_token_id, config.boi_token_id, config.eoi_token_id
        self.marker = image_marker(context, "<|image|>")
        check_token(context, self.marker, self._id, "image_token_id")
        self._square = config.vision_config.pooling_kernel_size**2
        for name in ("patch_size", "pooling_kernel_size"):
            if self._processor.setting(name) != getattr(config.vision_config, name):
                raise CheckpointError(
                    f"{context.folder}: `{name}` of the image processor differs from that of config.json."
                )

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image to one id per embedding, between those that begin and end it. Raises BadRequest."""
        check_shape(item)
        try:
            made = self._processor(item)
        except ValueError as error:
            raise BadRequest(f"The picture cannot be used: {error}.", "image") from error
        count = int(made["num_soft_tokens_per_image"][0])
        patches = made["pixel_values"][0][: count * self._square]
        columns = int(made["image_position_ids"][0, :, 0].max()) + 1
        return MappedMedia(
            [self._begin, *[self._id] * count, self._end],
            {"patches": patches, "grid": np.array([len(patches) // columns, columns])},
            rows_at=np.arange(1, count + 1),
        )
