"""What mappers of pictures have in common: transformers' processors, those that work with Pillow, and what they refuse.

An answer so does not depend on what else is installed. It is no plugin by itself.
"""

from __future__ import annotations

from typing import Any

from quire.errors import BadRequest, CheckpointError
from quire.records import Context

NARROWEST = 200
"""How many times as long as the other a side of a picture may be."""


class Processor:
    """The image processor of a model's folder. Threads may share it."""

    def __init__(self, context: Context) -> None:
        """Raises CheckpointError when the folder has none that can be used."""
        from transformers import AutoImageProcessor

        try:
            self._processor = AutoImageProcessor.from_pretrained(context.folder, backend="pil", local_files_only=True)
        except Exception as error:  # transformers raises many kinds for files it cannot use
            raise CheckpointError(
                f"{context.folder} has no image processor that can be used (processor_config.json or "
                f"preprocessor_config.json): {' '.join(str(error).split())[:300]}"
            ) from error

    def __call__(self, picture: Any, **settings: Any) -> Any:
        """What it makes of a picture, as numpy arrays by name; the first dimension is that of pictures.

        settings: instead of its own.
        """
        return self._processor(images=picture, return_tensors="np", **settings)

    def setting(self, name: str) -> Any:
        """One of its own."""
        return getattr(self._processor, name)

    @property
    def sizes(self) -> list[list[int]]:
        """[height, width] that it scales and pads pictures to before it cuts them."""
        return [list(size) for size in self._processor.image_grid_pinpoints]

    def of_frames(self, side: int) -> Any:
        """One with the same colours that scales pictures to a square and does not cut them."""
        from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

        like = self._processor
        return SiglipImageProcessorPil(
            size={"height": side, "width": side},
            resample=like.resample,
            image_mean=like.image_mean,
            image_std=like.image_std,
            rescale_factor=like.rescale_factor,
        )


def blank(side: int) -> Any:
    """A black square."""
    from PIL import Image

    return Image.new("RGB", (side, side))


def check_shape(picture: Any) -> None:
    """Raise BadRequest for a picture so narrow that scaling its short side would make the long one enormous."""
    width, height = picture.size
    if max(width, height) > NARROWEST * min(width, height):
        raise BadRequest(
            f"The picture is {width} × {height} pixels; one side may be at most {NARROWEST} times the other.", "image"
        )


def check_side(pixels: Any, side: int) -> None:
    """Raise CheckpointError unless pixels [tiles, channels, height, width] are such as the tower reads."""
    if pixels.shape[-2:] != (side, side):
        height, width = pixels.shape[-2:]
        raise CheckpointError(
            f"The image processor makes pictures of {height} × {width} pixels; the model reads {side} × {side}."
        )
