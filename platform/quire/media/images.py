"""Images from bytes or from what Python code holds, as the RGB pictures that input mappers take.

It knows no fetching. Orientation in EXIF is applied. Transparent pictures lie on white, as in a viewer
(and in vLLM); grey pictures of 16 bits keep the upper eight; an animation is its first frame; other modes become RGB
as Pillow does it.
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
"""What is opened; Pillow's other readers serve rare formats, and some of them start other programs."""

KEPT_PIXELS = 4096 * 4096
"""A larger picture is shrunk by a whole number, by averaging: models read at most about 13 million pixels, and each
copy of a large one takes long and much memory."""

LOW_DETAIL_SIDE = 512
"""Longest side of a picture that was sent with low detail, as in OpenAI's API."""


_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes each orientation that EXIF can tell."""


def readable_formats() -> list[str]:
    """Those of `FORMATS` that this Pillow reads."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def num_pixels(data: bytes) -> int:
    """Pixels that the header of an image file promises; 0 if it cannot be read: decoding says what is wrong."""
    try:
        with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
            return image.width * image.height
    except Exception:  # headers may be broken in as many ways as there are formats
        return 0


def decode_image(data: bytes, max_pixels: int, low: bool = False) -> Image.Image:
    """The picture of an image file, RGB, its size checked before it is decoded.

    low: shrink it to low detail. Raises TooLarge for too many pixels, Unprocessable for bytes that are no image, or a
    broken one.
    """
    if not data:
        raise Unprocessable("The image is empty: it has no bytes.")
    try:
        with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
            return to_rgb(image, max_pixels, low)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many(max_pixels) from None
    except UnidentifiedImageError:
        raise Unprocessable(f"The image cannot be read: {_what(data)}.") from None
    except QuireError:
        raise
    except Exception as error:  # as below, for headers
        raise _damaged(error) from error


def to_rgb(image: Image.Image, max_pixels: int, low: bool = False) -> Image.Image:
    """A picture in RGB, upright, on white where it is transparent; TooLarge or Unprocessable as above."""
    if not image.width * image.height:
        raise Unprocessable("The image has no pixels.")
    if image.width * image.height > max_pixels:
        raise _too_many(max_pixels, f"{image.width} × {image.height}")
    try:
        image.load()
        made = _plain(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise whatever broken bytes lead them to
        raise _damaged(error) from error
    times = math.ceil(math.sqrt(made.width * made.height / KEPT_PIXELS))
    if times > 1:
        made = made.reduce(times)
    if low:
        made = made.copy() if made is image else made  # which the caller may hold
        made.thumbnail((LOW_DETAIL_SIDE, LOW_DETAIL_SIDE))
    return made


def _plain(image: Image.Image) -> Image.Image:
    turn = _UPRIGHT.get(_orientation(image))
    upright = image if turn is None else image.transpose(turn)
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
    except Exception:  # what is written beside a picture may be broken in as many ways, and the picture whole
        return None


def as_image(item: Any, max_pixels: int, low: bool = False) -> Image.Image:
    """A picture that Python code holds: of Pillow, or an array or tensor of uint8, [height, width] or
    [height, width, 3 or 4] (tensors also [3 or 4, height, width]); `BadRequest` for anything else."""
    if isinstance(item, Image.Image):
        return to_rgb(item, max_pixels, low)
    pixels = _pixels(item)
    if pixels is None:
        raise BadRequest(
            "An image must be a picture of Pillow, bytes of an image file, a path, a URL, or an array of uint8 of shape"
            f" [height, width, 3]; got {_shape(item)}."
        )
    return to_rgb(Image.fromarray(pixels), max_pixels, low)


def _pixels(item: Any) -> np.ndarray | None:
    """[height, width] or [height, width, 3 or 4], None if it is no picture."""
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
    """What the bytes may be instead of an image."""
    begin = data[:1024].lstrip().lower()
    if begin.startswith((b"<!doctype html", b"<html")) or b"<html" in begin:
        return "it is a page of HTML"
    if b"<svg" in begin:
        return "it is SVG, which describes an image but is none"
    return f"it is none of {', '.join(FORMATS)}"
