"""Estimates from file headers whether decoding media is heavy work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import TooLarge
from quire.media.items import MediaBytes
from quire.media.limits import MediaLimits

LIGHT_BYTES = 4 << 20
"""WAV files of a prompt with up to this number of bytes in total are decoded in a fraction of a second."""


def is_heavy(items: Mapping[str, Sequence[Any]], limits: MediaLimits) -> bool:
    """Whether decoding is heavy: any video, large images, long audio, audio whose file does not tell its length.

    Light prompts do not wait for heavy ones. Raises TooLarge for images of more than `limits.max_pixels` together.
    Unreadable images count as 0 pixels; decoding them raises the error.
    """
    encoded = {name: [item.data for item in several if isinstance(item, MediaBytes)] for name, several in items.items()}
    are_large = _are_large(encoded.get("image", ()), limits)
    return are_large or bool(encoded.get("video")) or _are_long(encoded.get("audio", ()))


def _are_large(files: Sequence[bytes], limits: MediaLimits) -> bool:
    if not files:
        return False
    from quire.media import images  # imports numpy

    sizes = list(map(images.num_pixels, files))
    if sum(sizes) > limits.max_pixels:
        raise TooLarge(
            f"The images of the prompt have {sum(sizes)} pixels together; at most {limits.max_pixels} are taken"
            " (--max-prompt-pixels)."
        )
    return sum(sizes) > images.LIGHT_PIXELS or any(map(images.is_costly, files, sizes))


def _are_long(files: Sequence[bytes]) -> bool:
    if not files:
        return False
    from quire.media.wav import is_plain_wav  # imports numpy

    return sum(map(len, files)) > LIGHT_BYTES or not all(map(is_plain_wav, files))
