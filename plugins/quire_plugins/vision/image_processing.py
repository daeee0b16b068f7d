"""Shared parts of image input mappers: the image processors of transformers (those based on Pillow), and input checks.

Only the Pillow variants are used, so that results do not depend on installed packages. This module is not a plugin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.errors import BadRequest, CheckpointError
from quire.records import Context
from quire_models.loading.json_files import read_object

NARROWEST = 200
"""Maximum aspect ratio of an image."""


class HFImageProcessor:
    """The image processor of a model's folder. Thread-safe."""

    def __init__(self, context: Context) -> None:
        """Raises CheckpointError when the folder has no usable processor."""
        from transformers import AutoImageProcessor

        try:
            self._processor = AutoImageProcessor.from_pretrained(context.folder, backend="pil", local_files_only=True)
        except Exception as error:  # transformers raises many types for unusable files
            raise CheckpointError(
                f"{context.folder} has no image processor that can be used (processor_config.json or "
                f"preprocessor_config.json): {' '.join(str(error).split())[:300]}"
            ) from error

    def __call__(self, picture: Any, **settings: Any) -> Any:
        """Returns the processor's output for an image as numpy arrays by name; the first dimension is the image.

        settings: override those of the processor.
        """
        return self._processor(images=picture, return_tensors="np", **settings)

    def setting(self, name: str) -> Any:
        """One setting of the processor."""
        return getattr(self._processor, name)

    @property
    def sizes(self) -> list[list[int]]:
        """[height, width] that the processor scales and pads images to before cutting tiles."""
        return [list(size) for size in self._processor.image_grid_pinpoints]

    def of_frames(self, side: int) -> Any:
        """A processor with the same normalization that scales images to a square without tiles."""
        from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

        like = self._processor
        return SiglipImageProcessorPil(
            size={"height": side, "width": side},
            resample=like.resample,
            image_mean=like.image_mean,
            image_std=like.image_std,
            rescale_factor=like.rescale_factor,
        )


def token_id(context: Context, name: str) -> int:
    """The id of a token that pictures need, by its name. Raises CheckpointError."""
    ids = None if context.tokenizer is None else context.tokenizer.encode(name, add_special_tokens=False)
    if ids is None or len(ids) != 1:
        raise CheckpointError(f"{context.folder}: pictures need the token {name}, which the tokenizer does not have.")
    return int(ids[0])


def check_token(context: Context, name: str, expected: int, field: str) -> None:
    """Raises CheckpointError unless the tokenizer makes of a name the token of the model. field: of config.json."""
    found = None if context.tokenizer is None else context.tokenizer.encode(name, add_special_tokens=False)
    if found != [expected]:
        raise CheckpointError(
            f"{context.folder}: {name!r} must be the token {expected}, `{field}` of config.json; the tokenizer makes"
            f" {found} of it."
        )


def image_marker(context: Context, default: str) -> str:
    """The token that stands for an image in a prompt, which tokenizer_config.json may name."""
    settings = read_object(Path(str(context.folder)), "tokenizer_config.json") or {}
    named = settings.get("image_token") or (settings.get("extra_special_tokens") or {}).get("image_token")
    return named if isinstance(named, str) else default


def processor_settings(folder: str | None, part: str, files: Sequence[str]) -> Mapping[str, Any]:
    """That part of processor_config.json, else the first of the files that exists; {} if none does."""
    if folder is None:
        return {}
    found = (read_object(Path(folder), "processor_config.json") or {}).get(part)
    if isinstance(found, dict):
        return found
    given = (read_object(Path(folder), name) for name in files)
    return next((settings for settings in given if settings is not None), {})


def black_square(side: int) -> Any:
    """A black square image."""
    from PIL import Image

    return Image.new("RGB", (side, side))


def check_shape(picture: Any) -> None:
    """Raises BadRequest for an image so narrow that scaling its short side would make the long side huge."""
    width, height = picture.size
    if max(width, height) > NARROWEST * min(width, height):
        raise BadRequest(
            f"The picture is {width} × {height} pixels; one side may be at most {NARROWEST} times the other.", "image"
        )


def check_side(pixels: Any, side: int) -> None:
    """Raises CheckpointError unless pixels [tiles, channels, height, width] have the size that the tower expects."""
    if pixels.shape[-2:] != (side, side):
        height, width = pixels.shape[-2:]
        raise CheckpointError(
            f"The image processor makes pictures of {height} × {width} pixels; the model reads {side} × {side}."
        )
