"""Decodes image files, and converts images of Python code, to RGB images of Pillow for input mappers.

The EXIF orientation is applied. Transparent images are put on white, as in vLLM; 16-bit gray images keep their upper
eight bits; an animation becomes its first frame; other modes are converted by Pillow.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.ExifTags import Base

from quire.errors import BadRequest, QuireError, TooLarge, Unprocessable

FORMATS = ("AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
"""Accepted formats. Pillow's other readers are for rare formats, and some of them start other programs."""

MAX_KEPT_PIXELS = 4096 * 4096
"""Larger images are shrunk by an integer factor, by averaging: models read at most about 13 million pixels, and every
copy of a large image costs much time and memory."""

LIGHT_PIXELS = 4 << 20
"""Images with up to this number of pixels are decoded in a fraction of a second."""

LIGHT_SCANS = 64
"""Scans of a JPEG file that are decoded in a fraction of a second. Programs write about ten; each of them goes over all
pixels, and may have as few as 15 bytes in the file."""

LOW_DETAIL_SIDE = 512
"""Longest side of an image with low detail, as in OpenAI's API."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation → the operation that makes the image upright."""


def readable_formats() -> list[str]:
    """The formats of `FORMATS` that the installed Pillow can read."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def num_pixels(data: bytes) -> int:
    """The number of pixels according to the header of an image file; 0 if it cannot be read."""
    try:
        with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
            return image.width * image.height
    except Exception:  # each reader fails in its own way on a broken header
        return 0


def is_costly(data: bytes, pixels: int) -> bool:
    """Whether decoding an image takes longer than a fraction of a second. pixels: its `num_pixels`."""
    is_jpeg = data[:3] == b"\xff\xd8\xff"
    return pixels > LIGHT_PIXELS or (is_jpeg and data.count(b"\xff\xda") > LIGHT_SCANS)


def decode_image(data: bytes, max_pixels: int, low_detail: bool = False) -> Image.Image:
    """Decode an image file to RGB. Its size is checked before it is decoded.

    low_detail: shrink it to low detail. Raises TooLarge for too many pixels, Unprocessable for bytes that are not an
    image or are damaged.
    """
    if not data:
        raise Unprocessable("The image is empty: it has no bytes.")
    try:
        with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
            return to_rgb(image, max_pixels, low_detail)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many(max_pixels) from None
    except UnidentifiedImageError:
        raise Unprocessable(f"The image cannot be read: {_what(data)}.") from None
    except QuireError:
        raise
    except Exception as error:  # each reader fails in its own way on a broken header
        raise _damaged(error) from error


def to_rgb(image: Image.Image, max_pixels: int, low_detail: bool = False) -> Image.Image:
    """Convert an image to RGB, upright, on a white background. Raises TooLarge or Unprocessable as `decode_image`."""
    if not image.width * image.height:
        raise Unprocessable("The image has no pixels.")
    if image.width * image.height > max_pixels:
        raise _too_many(max_pixels, f"{image.width} × {image.height}")
    try:
        image.load()
        rgb = _upright_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # each decoder fails in its own way on damaged data
        raise _damaged(error) from error
    factor = math.ceil(math.sqrt(rgb.width * rgb.height / MAX_KEPT_PIXELS))
    if factor > 1:
        rgb = rgb.reduce(factor)
    if low_detail:
        rgb = rgb.copy() if rgb is image else rgb  # `thumbnail` changes the image, which belongs to the caller
        rgb.thumbnail((LOW_DETAIL_SIDE, LOW_DETAIL_SIDE))
    return rgb


def _upright_rgb(image: Image.Image) -> Image.Image:
    operation = _UPRIGHT.get(_orientation(image))
    upright = image if operation is None else image.transpose(operation)
    if upright.mode.startswith("I;16"):
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        white = Image.new("RGBA", upright.size, "white")
        upright = Image.alpha_composite(white, upright)
    return upright if upright.mode == "RGB" else upright.convert("RGB")


def _orientation(image: Image.Image) -> Any:
    try:
        return image.getexif().get(Base.Orientation)
    except Exception:  # broken metadata do not make the image unusable
        return None


def as_image(item: Any, max_pixels: int, low_detail: bool = False) -> Image.Image:
    """Convert an image of Python code: a Pillow image, or an array or tensor.

    Arrays are uint8, [height, width] or [height, width, 3 or 4]; tensors also [3 or 4, height, width]. Raises
    `BadRequest` for other objects.
    """
    if isinstance(item, Image.Image):
        return to_rgb(item, max_pixels, low_detail)
    pixels = _pixels(item)
    if pixels is None:
        raise BadRequest(
            "An image must be a Pillow image, bytes of an image file, a path, a URL, or an array of uint8 of shape"
            f" [height, width, 3]; got {_shape(item)}."
        )
    return to_rgb(Image.fromarray(pixels), max_pixels, low_detail)


def _pixels(item: Any) -> np.ndarray | None:
    """uint8 [height, width] or [height, width, 3 or 4]; None for an object that is not an image."""
    import torch

    is_tensor = isinstance(item, torch.Tensor)
    array = item.detach().cpu().numpy() if is_tensor else item
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or 0 in array.shape:
        return None
    if is_tensor and array.ndim == 3 and array.shape[2] not in (3, 4):
        array = np.ascontiguousarray(array.transpose(1, 2, 0))
    return array if array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4)) else None


def _shape(item: Any) -> str:
    import torch

    if isinstance(item, np.ndarray | torch.Tensor):
        return f"{type(item).__name__} of {item.dtype} {list(item.shape)}"
    return type(item).__name__


def _damaged(error: Exception) -> Unprocessable:
    return Unprocessable(f"The image is damaged: {str(error)[:200].rstrip('.') or type(error).__name__}.")


def _too_many(max_pixels: int, size: str | None = None) -> TooLarge:
    return TooLarge(
        f"The image has {f'{size} pixels' if size else 'too many pixels'}; at most {max_pixels} are taken"
        " (--max-image-pixels)."
    )


def _what(data: bytes) -> str:
    """A clause that says what the bytes are instead of an image."""
    begin = data[:1024].lstrip().lower()
    if begin.startswith((b"<!doctype html", b"<html")) or b"<html" in begin:
        return "it is a page of HTML"
    if b"<svg" in begin:
        return "it is SVG, a vector format that is not supported"
    return f"it is none of {', '.join(FORMATS)}"
