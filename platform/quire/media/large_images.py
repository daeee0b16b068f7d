"""Decodes large images in a worker process: decoding holds the GIL for long and cannot be interrupted.

The file and the pixels are exchanged in shared memory.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from quire.errors import Unprocessable
from quire.isolation.isolated_calls import IsolatedCalls, Purpose
from quire.isolation.plugin_calls import Shared, SharedBytes

if TYPE_CHECKING:
    from PIL import Image

DECODING = Purpose(
    "Decoding the image", "--media-timeout-s, --media-decode-timeout-s", None, kind=Unprocessable, idle=False
)

BYTES_PER_PIXEL = 32
"""Upper bound of the memory for decoding: several copies of an image with four channels."""

CAN_SHARE = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Whether another process can open shared memory of this one by its path."""


class LargeImages:
    """Decodes the large images of one model's prompts. Thread-safe. timeout_s: limit for one image."""

    def __init__(self, timeout_s: float) -> None:
        self._calls = IsolatedCalls(timeout_s, DECODING)

    def decode(self, data: bytes, max_pixels: int, low_detail: bool, timeout_s: float) -> Image.Image:
        """Do what `quire.media.images.decode_image` does; also raises Unprocessable for too much time or memory."""
        from PIL import Image

        file = SharedBytes.create()
        file.append(data)
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        memory_bytes = BYTES_PER_PIXEL * max_pixels
        found: Shared = self._calls(
            decode_file, path, max_pixels, low_detail, memory_bytes=memory_bytes, timeout_s=timeout_s
        )
        width, height = found.value
        pixels = found.memory.map()
        return Image.frombuffer("RGB", (width, height), pixels, "raw", "RGB", 0, 1)  # type: ignore[arg-type]

    def close(self) -> None:
        self._calls.close()


def decode_file(path: str, max_pixels: int, low_detail: bool) -> Shared:
    """[width, height] and the RGB bytes of the image in a file. Runs in the worker process."""
    from quire.media.images import decode_image

    with open(path, "rb") as file:
        image = decode_image(file.read(), max_pixels, low_detail)
    memory = SharedBytes.create()
    memory.append(image.tobytes())
    memory.seal()
    return Shared(list(image.size), memory)
