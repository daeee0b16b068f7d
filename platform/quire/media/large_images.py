"""Large images, decoded in a process that can be ended: decoding one holds the interpreter's lock for long, and cannot
be interrupted.

The file goes there and the pixels come back in shared memory.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from quire.errors import Unprocessable
from quire.isolated_calls import IsolatedCalls, Purpose
from quire.isolation import Shared, SharedBytes

if TYPE_CHECKING:
    from PIL import Image

DECODING = Purpose(
    "Decoding the image", "--media-timeout-s, --media-decode-timeout-s", None, kind=Unprocessable, idle=False
)

BYTES_PER_PIXEL = 32
"""That decoding takes at its most: pictures of four channels, several of them at once."""

CAN_SHARE = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Whether another process can open this one's shared memory by a path."""


class LargeImages:
    """Decodes for one model's prompts; threads may share it. timeout_s: longest time of one image."""

    def __init__(self, timeout_s: float) -> None:
        self._calls = IsolatedCalls(timeout_s, DECODING)

    def decode(self, data: bytes, max_pixels: int, low: bool, timeout_s: float) -> Image.Image:
        """As `quire.media.images.decode_image`; raises Unprocessable when it takes too long or too much memory."""
        from PIL import Image

        file = SharedBytes.create()
        file.append(data)
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        memory_bytes = BYTES_PER_PIXEL * max_pixels
        found: Shared = self._calls(decode_file, path, max_pixels, low, memory_bytes=memory_bytes, timeout_s=timeout_s)
        width, height = found.value
        pixels = found.memory.map()
        return Image.frombuffer("RGB", (width, height), pixels, "raw", "RGB", 0, 1)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the processes."""
        self._calls.close()


def decode_file(path: str, max_pixels: int, low: bool) -> Shared:
    """Width and height, and the bytes of the pixels, of the image in a file."""
    from quire.media.images import decode_image

    with open(path, "rb") as file:
        image = decode_image(file.read(), max_pixels, low)
    memory = SharedBytes.create()
    memory.append(image.tobytes())
    memory.seal()
    return Shared(list(image.size), memory)
