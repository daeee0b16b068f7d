"""How much work decoding media is, from their headers: nothing is decoded for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import TooLarge
from quire.media.items import Encoded
from quire.media.limits import MediaLimits

LIGHT_PIXELS = 4 << 20
"""Images of a prompt with no more pixels than this take a fraction of a second."""
LIGHT_BYTES = 4 << 20
"""Likewise bytes of audio."""


def is_heavy(items: Mapping[str, Sequence[Any]], limits: MediaLimits) -> bool:
    """Whether decoding takes long, so that other prompts must not wait for it: all video, large images, long audio.

    Raises TooLarge for images of more than `limits.max_pixels` together. What cannot be read has no pixels: decoding it
    says what is wrong.
    """
    encoded = {name: [item for item in several if isinstance(item, Encoded)] for name, several in items.items()}
    sizes = _pixels([item.data for item in encoded.get("image", ())])
    if sum(sizes) > limits.max_pixels:
        raise TooLarge(
            f"The images of the prompt have {sum(sizes)} pixels together; at most {limits.max_pixels} are taken"
            " (--max-prompt-pixels)."
        )
    num_bytes = sum(len(item.data) for item in encoded.get("audio", ()))
    return bool(encoded.get("video")) or sum(sizes) > LIGHT_PIXELS or num_bytes > LIGHT_BYTES


def _pixels(files: Sequence[bytes]) -> list[int]:
    if not files:
        return []
    from quire.media.images import num_pixels  # imports numpy

    return list(map(num_pixels, files))
