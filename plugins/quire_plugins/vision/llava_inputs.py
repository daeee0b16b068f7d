"""Image and video inputs of LLaVA models: the processors of transformers, and the numbers of placeholder ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError, ConfigError
from quire.records import Context, MappedMedia
from quire_plugins.vision.image_processing import HFImageProcessor, black_square, check_shape, check_side
from quire_plugins.vision.llava_tiles import Tiling

LONGEST = 4096
"""Longer sides of images that are padded to a square are scaled down to this many pixels before padding."""


class LlavaImageProcessor:
    """Images scaled to one tile: LLaVA 1.5."""

    def __init__(self, context: Context, config: Any, tokens: int) -> None:
        """tokens: hidden states per tile. Raises CheckpointError."""
        self._processor = HFImageProcessor(context)
        self._id, self._tokens = config.image_token_id, tokens
        side = config.vision_config.image_size
        check_side(self._pixels(black_square(side)), side)

    def _pixels(self, picture: Any) -> NDArray[np.float32]:
        """Returns [1, channels, tile, tile]."""
        pixels: NDArray[np.float32] = self._processor(picture)["pixel_values"]
        return pixels

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image to as many ids as a tile has hidden states. Raises BadRequest for a narrow one."""
        check_shape(item)
        return MappedMedia(ids=[self._id] * self._tokens, tensors={"pixels": self._pixels(item)})


class TiledImageProcessor:
    """Images as a whole and in tiles: LLaVA-NeXT, LLaVA-OneVision."""

    def __init__(self, context: Context, config: Any, tiling: Tiling) -> None:
        self._processor = HFImageProcessor(context)
        self._id, self._tiling = config.image_token_id, tiling
        if sorted(self._processor.sizes) != sorted(map(list, tiling.sizes)):
            raise CheckpointError(
                f"{context.folder}: `image_grid_pinpoints` of config.json and of the image processor differ."
            )
        check_side(self._processor(black_square(tiling.tile))["pixel_values"][0], tiling.tile)

    def map(self, item: Any) -> MappedMedia:
        """Maps a Pillow image to ids for the whole image and for each line of tiles with its end. Raises BadRequest."""
        check_shape(item)
        made = self._processor(item)
        height, width = (int(length) for length in made["image_sizes"][0])
        tensors = {"pixels": made["pixel_values"][0], "grid": self._tiling.grid(height, width)}
        lines, columns = tensors["grid"].shape
        if shrunk := self._tiling.shrunk(lines, columns):
            tensors["shrunk"] = np.array(shrunk, np.int64)
            lines, columns = shrunk
        return MappedMedia(ids=[self._id] * (self._tiling.tokens + lines * (columns + 1)), tensors=tensors)


class SingleImageProcessor:
    """Tiles an image if it is the only one of the prompt; otherwise uses the whole image only: LLaVA-OneVision."""

    def __init__(self, context: Context, config: Any, tiling: Tiling) -> None:
        self._tiled = TiledImageProcessor(context, config, tiling)
        self._processor = HFImageProcessor(context)
        self._id, self._tiling = config.image_token_id, tiling

    def map(self, item: Any) -> MappedMedia:
        """Maps an image that is the only one of its prompt."""
        return self._tiled.map(item)

    def map_with_count(self, item: Any, count: int) -> MappedMedia:
        """Maps one of several images to one id more than a tile has hidden states. Raises BadRequest."""
        if count == 1:
            return self.map(item)
        check_shape(item)
        if max(item.size) > LONGEST:
            item = item.copy()
            item.thumbnail((LONGEST, LONGEST))
        made = self._processor([[item, black_square(1)]])  # of several it makes squares, without tiles
        return MappedMedia(ids=[self._id] * (self._tiling.tokens + 1), tensors={"pixels": made["pixel_values"][0]})


class LlavaVideoProcessor:
    """Videos whose frames are scaled to one tile each and pooled: LLaVA-OneVision."""

    def __init__(self, context: Context, config: Any, tiling: Tiling) -> None:
        """Raises CheckpointError, or ConfigError for an invalid option."""
        self._processor = HFImageProcessor(context).of_frames(tiling.tile)
        self._id, self._tiling, self._most = config.video_token_id, tiling, context.options["frames"]
        if self._most < 1:
            raise ConfigError(f"--llava.frames must be at least 1; got {self._most}.")

    def map(self, item: Any) -> MappedMedia:
        """Maps a `quire.media.video.Video` to one id more than its frames have pooled patches."""
        frames = item.frames(item.uniform(self._most))
        pixels = self._processor(images=list(frames), return_tensors="np", input_data_format="channels_last")
        half = -(-self._tiling.side // 2)
        return MappedMedia(
            ids=[self._id] * (len(frames) * half**2 + 1), tensors={"frames": np.asarray(pixels["pixel_values"])}
        )
