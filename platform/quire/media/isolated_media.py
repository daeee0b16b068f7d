"""Decodes media in worker processes: decoding cannot be interrupted in a thread, and small files may need much memory.

Files, pixels and samples are exchanged in shared memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from quire.errors import Unprocessable
from quire.isolation.isolated_calls import IsolatedCalls, Purpose
from quire.isolation.plugin_calls import Shared, SharedBytes
from quire.media.limits import DecodingTime, MediaLimits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from quire.media.audio import Audio
    from quire.media.video import Video

SETTINGS = "--media-timeout-s, --media-decode-timeout-s"

BYTES_PER_PIXEL = 32
"""Upper bound of the memory for decoding: several copies of an image with four channels, or of a video's frame."""

CAN_SHARE = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Whether another process can open shared memory of this one by its path."""


class IsolatedMedia:
    """Decodes media of one model's prompts in worker processes. Thread-safe. timeout_s: limit for one call.

    Its methods do what the functions of `quire.media.images`, `audio` and `video` do; they also raise Unprocessable for
    too much time or memory.
    """

    def __init__(self, timeout_s: float) -> None:
        self._calls = {
            name: IsolatedCalls(
                timeout_s, Purpose(f"Decoding the {name}", SETTINGS, None, kind=Unprocessable, idle=False)
            )
            for name in ("image", "audio", "video")
        }

    def image(self, data: bytes, max_pixels: int, low_detail: bool, timeout_s: float) -> Image.Image:
        """Do what `decode_image` does."""
        from PIL import Image

        limits = MediaLimits(max_image_pixels=max_pixels, timeout_s=timeout_s)
        found = self._call("image", image_pixels, data, limits, low_detail)
        width, height = found.value
        return Image.frombuffer("RGB", (width, height), found.memory.map(), "raw", "RGB", 0, 1)  # type: ignore[arg-type]

    def audio(self, data: bytes, limits: MediaLimits) -> Audio:
        """Do what `decode_audio` does."""
        import numpy as np

        from quire.media.audio import Audio

        found = self._call("audio", audio_samples, data, limits)
        return Audio(samples=np.frombuffer(found.memory.map(), np.float32), rate=found.value)

    def video(self, data: bytes, limits: MediaLimits, time: DecodingTime) -> Video:
        """Do what `decode_video` does. time: the decoding of frames, which is done later, is subtracted from it."""
        from quire.media.video import Video

        num_frames, fps, height, width = self._call("video", video_size, data, limits)

        def read(numbers: Sequence[int]) -> NDArray[np.uint8]:
            import numpy as np

            now = replace(limits, timeout_s=min(limits.timeout_s, time.remaining_s))
            with time.measure():
                found = self._call("video", video_frames, data, now, list(numbers))
            return np.frombuffer(found.memory.map(), np.uint8).reshape(found.value)

        return Video(
            num_frames=num_frames, fps=fps, height=height, width=width, max_frames=limits.max_frames, read=read
        )

    def _call(self, what: str, function: Callable[..., Any], data: bytes, limits: MediaLimits, *more: Any) -> Any:
        with _shared(data) as path:
            return self._calls[what](
                function,
                path,
                _numbers(limits),
                *more,
                memory_bytes=BYTES_PER_PIXEL * limits.max_image_pixels,
                timeout_s=limits.timeout_s,
            )

    def close(self) -> None:
        for calls in self._calls.values():
            calls.close()


@contextmanager
def _shared(data: bytes) -> Iterator[str]:
    """The path at which a worker process can open the bytes."""
    file = SharedBytes.create()
    try:
        file.append(data)
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"
    finally:
        file.close()


def _numbers(limits: MediaLimits) -> dict[str, Any]:
    """The limits that are numbers, as plain data."""
    return {name: value for name, value in asdict(limits).items() if type(value) in (int, float)}


# --- in the worker process -----------------------------------------------------------------------------


def image_pixels(path: str, limits: Mapping[str, Any], low_detail: bool) -> Shared:
    """[width, height] and the RGB bytes of the image in a file."""
    from quire.media.images import decode_image

    image = decode_image(_content(path), MediaLimits(**limits).max_image_pixels, low_detail)
    return _result(list(image.size), [image.tobytes()])


def audio_samples(path: str, limits: Mapping[str, Any]) -> Shared:
    """The samples per second, and the samples as float32, of the audio in a file."""
    from quire.media.audio import decode_audio

    audio = decode_audio(_content(path), MediaLimits(**limits))
    return _result(audio.rate, [audio.samples.data.cast("B")])


def video_size(path: str, limits: Mapping[str, Any]) -> list[Any]:
    """[number of frames, frames per second, height, width] of the video in a file."""
    from quire.media.video import VideoFile

    video = VideoFile.open(_content(path), MediaLimits(**limits))
    return [video.num_frames, video.fps, *video.shape]


def video_frames(path: str, limits: Mapping[str, Any], numbers: Sequence[int]) -> Shared:
    """[frames, height, width, 3], and the RGB bytes of some frames of the video in a file."""
    from quire.media.video import VideoFile

    video = VideoFile.open(_content(path), MediaLimits(**limits))
    frames = (frame.tobytes() for frame in video.frames(numbers))  # one at a time: all together may be a gigabyte
    return _result([len(numbers), *video.shape, 3], frames)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _result(value: Any, parts: Iterator[bytes] | Sequence[bytes | memoryview]) -> Shared:
    memory = SharedBytes.create()
    for part in parts:
        memory.append(part)
    memory.seal()
    return Shared(value, memory)
