"""Image and video inputs of Qwen-VL: resized to whole squares of patches and cut into patches.

The image processor of transformers computes the pixels with the settings of the model folder. A video is a list of
images; as many of them as a patch is deep make one frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quire.errors import BadRequest
from quire.records import Context, MappedMedia
from quire_models.towers.grid_positions import grid_positions
from quire_plugins.vision.image_processing import processor_settings

FPS = 2.0
"""Default frame rate, for sampling a video and for videos without a rate."""

PATCH = 14
"""Default of the patch size."""

Pixels: TypeAlias = NDArray[np.float32]


@runtime_checkable
class VideoSource(Protocol):
    """A video whose frames are decoded on demand. fps: frames per second, None if unknown."""

    num_frames: int
    fps: float | None

    def uniform(self, count: int) -> list[int]:
        """Indices of `count` evenly spaced frames, or of all frames."""
        ...

    def frames(self, numbers: Sequence[int]) -> NDArray[np.uint8]:
        """Frames by index: uint8 [len(numbers), height, width, 3]."""
        ...


class QwenImageProcessor:
    """Maps Pillow images to patches and placeholder ids."""

    def __init__(self, context: Context, patch: int = PATCH) -> None:
        """patch: default of the patch size."""
        self._patches = MediaPatches(context, "image_processor", ("preprocessor_config.json",), patch=patch)
        self._token_id: int = context.config["image_token_id"]

    def map(self, item: Any) -> MappedMedia:
        """Maps an image to one id per square; the image is repeated over the depth of a patch."""
        pixels, (height, width) = self._patches.of([item])
        return mapped_grid(self._token_id, pixels[0], (1, height, width), self._patches.merge, 1.0)


class QwenVideoProcessor:
    """Videos: a `VideoSource`, an array uint8 [frames, height, width, 3], or images.

    timed: whether the positions of frames follow seconds; otherwise they are consecutive.
    """

    def __init__(self, context: Context, timed: bool) -> None:
        files = ("video_preprocessor_config.json", "preprocessor_config.json")
        size = {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}
        self._patches = MediaPatches(context, "video_processor", files, {"size": size})
        self._token_id: int = context.config["video_token_id"]
        self._per_second = context.config["vision_config"].get("tokens_per_second", 4) if timed else None

    def map(self, item: Any) -> MappedMedia:
        """Maps a video to one id per square; the last image is repeated to fill the last frame."""
        pictures, fps = self._frames(item)
        pixels, (height, width) = self._patches.of(pictures, self._most_pixels(len(pictures)))
        depth = self._patches.depth
        missing = -len(pixels) % depth
        if missing:
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], missing, 0)])
        frames = pixels.reshape(-1, depth, *pixels.shape[1:3], pixels.shape[-1])
        together = frames.transpose(0, 2, 3, 1, 4)  # [frames, patches, channels, depth, patch²]
        interval = 1.0 if self._per_second is None else self._per_second * depth / fps
        grid = len(together), height, width
        return mapped_grid(
            self._token_id, together.reshape(-1, *together.shape[2:]), grid, self._patches.merge, interval
        )

    def _frames(self, item: Any) -> tuple[list[Any], float]:
        """The sampled images, and their rate per second."""
        numbers = item.uniform(self._count(item)) if isinstance(item, VideoSource) else None
        taken = item.fps and item.fps * len(numbers) / item.num_frames if numbers is not None else FPS
        return video_frames(item, numbers), taken or FPS

    def _most_pixels(self, count: int) -> int | None:
        """Pixels per image, if the settings limit the total."""
        if not self._patches.settings.get("cap_pixels_per_frame"):
            return None
        tokens = self._patches.settings.get("max_video_tokens", 128_000)
        return int(tokens * self._patches.square**2 * 0.9) * self._patches.depth // count

    def _count(self, video: VideoSource) -> int:
        if video.fps is None:
            return video.num_frames
        settings, depth = self._patches.settings, self._patches.depth
        wanted = video.num_frames / video.fps * settings.get("fps", FPS)
        bounded = min(max(wanted, settings.get("min_frames", 4)), settings.get("max_frames", 768), video.num_frames)
        return max(int(bounded) // depth * depth, 1)


class MediaPatches:
    """Cuts images of one size into patches. settings: those of the folder. depth, merge: as in `PatchGridTower`.
    square: pixels per side of the square behind one embedding.

    part: key of the settings in a processor file; files: other files that may have them, the first one found is used.
    """

    def __init__(
        self,
        context: Context,
        part: str,
        files: Sequence[str],
        defaults: Mapping[str, Any] | None = None,
        patch: int = PATCH,
    ) -> None:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.settings = processor_settings(context.folder, part, files)
        vision = context.config["vision_config"]
        shape = {
            "patch_size": vision.get("patch_size", patch),
            "temporal_patch_size": vision.get("temporal_patch_size", 2),
            "merge_size": vision.get("spatial_merge_size", 2),
        }
        given = {name: self.settings[name] for name in _SETTINGS if self.settings.get(name) is not None}
        self._processor = Qwen2VLImageProcessorPil(**{**(defaults or {}), **given, **shape})
        self.depth, self.merge = shape["temporal_patch_size"], shape["merge_size"]
        self.square = shape["patch_size"] * self.merge

    def of(self, pictures: Sequence[Any], most_pixels: int | None = None) -> tuple[Pixels, tuple[int, int]]:
        """Returns [images, patches, channels, 1, patch²], and the numbers of patches per column and row.

        most_pixels: per image, if smaller than the limit of the settings; never less than slightly above their minimum.
        Raises `BadRequest` for images that cannot be resized, or have different sizes.
        """
        try:
            made = self._processor(images=list(pictures), return_tensors="np", size=self._size(most_pixels))
        except ValueError as error:
            raise BadRequest(f"The picture cannot be used: {error}.") from error
        return self._cut(pictures, made)

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most pixels of the settings."""
        return self._processor.size["shortest_edge"], self._processor.size["longest_edge"]

    def as_they_are(self, pictures: Sequence[Any]) -> tuple[Pixels, tuple[int, int]]:
        """The result of `of` for images whose sides are whole squares: they are not resized."""
        return self._cut(pictures, self._processor(images=list(pictures), return_tensors="np", do_resize=False))

    def _cut(self, pictures: Sequence[Any], made: Any) -> tuple[Pixels, tuple[int, int]]:
        grids = {tuple(grid) for grid in made["image_grid_thw"].tolist()}
        if len(grids) > 1:
            raise BadRequest("The pictures of a video must be of one size.")
        ((_, height, width),) = grids
        size = self._processor.patch_size**2
        pixels = made["pixel_values"].reshape(len(pictures), height * width, -1, self.depth, size)
        return pixels[:, :, :, :1], (height, width)

    def _size(self, most_pixels: int | None) -> dict[str, int]:
        fewest, most = self.bounds
        if most_pixels is not None:
            most = max(min(most, most_pixels), int(fewest * 1.05))
        return {"shortest_edge": fewest, "longest_edge": most}


_SETTINGS = (
    *("size", "min_pixels", "max_pixels", "do_resize", "resample", "do_rescale", "rescale_factor"),
    *("do_normalize", "image_mean", "image_std", "do_convert_rgb"),
)


def video_frames(item: Any, numbers: Sequence[int] | None) -> list[Any]:
    """The frames of a video: of a `VideoSource` those with these numbers. Raises BadRequest for other objects."""
    if isinstance(item, VideoSource):
        return list(item.frames(list(numbers or ())))
    good = item.ndim == 4 and item.shape[-1] == 3 if isinstance(item, np.ndarray) else isinstance(item, list)
    if not good or not len(item):
        raise BadRequest("A video must be an array of uint8 [frames, height, width, 3] or a list of pictures.")
    return list(item)


def mapped_grid(token_id: int, patches: Pixels, grid: tuple[int, int, int], merge: int, interval: float) -> MappedMedia:
    """The ids, tensors and positions of a grid (frames, rows, columns) of patches. interval: positions of a frame."""
    frames, height, width = grid
    positions = grid_positions((frames, height // merge, width // merge), interval)
    tensors = {"patches": np.ascontiguousarray(patches), "grid": np.array(grid)}
    return MappedMedia([token_id] * positions.shape[1], tensors, positions)
