"""Video inputs of Qwen3-VL: each frame stands alone, after the second that it shows.

<0.5 seconds><|vision_start|><|video_pad|>…<|vision_end|><1.5 seconds><|vision_start|><|video_pad|>…
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import Any

import numpy as np
from PIL import Image

from quire.errors import BadRequest
from quire.records import Context, MappedText
from quire_plugins.vision import qwen_vl
from quire_plugins.vision.qwen_vl_media import FPS, MediaPatches, VideoSource, mapped_grid, video_frames

PATCH = 16
"""Default of the patch size."""

UNKNOWN_FPS = 24.0
"""Frames per second of videos without a rate, as in transformers."""

SIZE = {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}
"""Default of the fewest and most pixels of all frames together."""


class TimedVideoProcessor:
    """Videos: a `VideoSource`, an array uint8 [frames, height, width, 3], or images."""

    def __init__(self, context: Context) -> None:
        files = ("video_preprocessor_config.json", "preprocessor_config.json")
        self._patches = MediaPatches(context, "video_processor", files, {"size": SIZE}, PATCH)
        self._token_id: int = context.config["video_token_id"]

    def map(self, item: Any) -> MappedText:
        """Maps a video to text with one medium for each frame; the last image is repeated to fill the last frame."""
        numbers, fps = self._numbers(item)
        pictures = video_frames(item, numbers)
        depth = self._patches.depth
        height, width = self._size(len(pictures), *_height_and_width(pictures[0]))
        scaled = [_scaled(picture, height, width) for picture in pictures]
        pixels, (rows, columns) = self._patches.as_they_are(scaled)
        missing = -len(pixels) % depth
        numbers = [*numbers, *[numbers[-1]] * missing]
        pixels = np.concatenate([pixels, np.repeat(pixels[-1:], missing, 0)])
        frames = pixels.reshape(-1, depth, *pixels.shape[1:3], pixels.shape[-1]).transpose(0, 2, 3, 1, 4)
        media = [mapped_grid(self._token_id, frame, (1, rows, columns), self._patches.merge, 1.0) for frame in frames]
        times = [(numbers[i] + numbers[i + depth - 1]) / 2 / fps for i in range(0, len(numbers), depth)]
        text = "".join(f"<{time:.1f} seconds><|vision_start|>{qwen_vl.VIDEO}<|vision_end|>" for time in times)
        return MappedText(text, qwen_vl.VIDEO, media)

    def _numbers(self, item: Any) -> tuple[list[int], float]:
        """Indices of the sampled frames, and the frames per second that they are counted in."""
        settings = self._patches.settings
        if not isinstance(item, VideoSource):
            return list(range(len(item))), UNKNOWN_FPS
        fps = item.fps or UNKNOWN_FPS
        wanted = int(item.num_frames / fps * settings.get("fps", FPS))
        count = min(max(wanted, settings.get("min_frames", 4)), settings.get("max_frames", 768), item.num_frames)
        return np.linspace(0, item.num_frames - 1, count).round().astype(int).tolist(), fps

    def _size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """Height and width that all frames are scaled to: whole squares, within the pixels that all may have.

        Raises BadRequest for narrow frames.
        """
        square = self._patches.square
        if min(height, width) < square:
            scale = square / min(height, width)
            height, width = int(height * scale), int(width * scale)
        if max(height, width) > 200 * min(height, width):
            raise BadRequest("One side of a video may be at most 200 times the other.", "video")
        sides = [round(side / square) * square for side in (height, width)]
        depth = self._patches.depth
        volume = max(1, round(frames / depth)) * depth * sides[0] * sides[1]
        fewest, most = self._bounds(frames)
        if volume > most:
            ratio = sqrt(frames * height * width / most)
            sides = [max(square, floor(side / ratio / square) * square) for side in (height, width)]
        elif volume < fewest:
            ratio = sqrt(fewest / (frames * height * width))
            sides = [ceil(side * ratio / square) * square for side in (height, width)]
        return sides[0], sides[1]

    def _bounds(self, frames: int) -> tuple[int, int]:
        """Fewest and most pixels of all frames."""
        fewest, most = self._patches.bounds
        settings = self._patches.settings
        if settings.get("cap_pixels_per_frame"):
            cap = settings.get("max_video_tokens", 768) * self._patches.square**2
            most = max(min(cap, most // frames), int(fewest * 1.05)) * frames
        return fewest, most


def _height_and_width(picture: Any) -> tuple[int, int]:
    if isinstance(picture, np.ndarray):
        return picture.shape[0], picture.shape[1]
    return picture.height, picture.width


def _scaled(picture: Any, height: int, width: int) -> Any:
    """The picture at this size, as an image of Pillow."""
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    return image.resize((width, height), Image.Resampling.BICUBIC)
