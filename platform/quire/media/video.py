"""Reads video files, and converts videos of Python code. Only the frames that an input mapper asks for are decoded."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BadRequest, TooLarge, Unprocessable
from quire.media.containers import DecodingDeadline, open_container
from quire.media.images import as_image
from quire.media.limits import MediaLimits

MAX_VIDEO_PIXELS_FACTOR = 4
"""Limit of the pixels of all requested frames together, in multiples of the limit of one image."""

MAX_THREADS = 4
"""Threads of a decoder. Each keeps frames of its own, so that many would need much memory for a large video."""

CODEC_MARGIN = 256
"""Decoders round the sides of a frame up, by at most this number of pixels."""

MAX_SEEKS = 3
"""Keyframes before a time from which decoding is attempted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Video:
    """A video whose frames are decoded on request.

    num_frames: total number of frames. fps: frames per second, None if unknown. read: from ascending frame numbers to
    uint8 [frames, height, width, 3]. max_frames: limit of one request.
    """

    num_frames: int
    fps: float | None
    height: int
    width: int
    max_frames: int
    read: Callable[[Sequence[int]], NDArray[np.uint8]]

    def uniform(self, count: int) -> list[int]:
        """Numbers of `count` frames spread evenly from the first one on, or of all frames if there are fewer."""
        count = min(count, self.num_frames, self.max_frames)
        return [i * self.num_frames // count for i in range(count)]

    def per_second(self, fps: float) -> list[int]:
        """Numbers of evenly spread frames, `fps` per second, at least one and at most `max_frames`."""
        return self.uniform(self.num_frames if self.fps is None else max(1, int(self.num_frames / self.fps * fps)))

    def frames(self, numbers: Sequence[int]) -> NDArray[np.uint8]:
        """RGB frames: uint8 [len(numbers), height, width, 3]. numbers: ascending.

        Raises TooLarge for more than `max_frames` frames, Unprocessable if they cannot be decoded.
        """
        if len(numbers) > self.max_frames:
            raise TooLarge(f"At most {self.max_frames} frames are taken of a video (--max-video-frames).")
        return self.read(numbers)


def decode_video(data: bytes, limits: MediaLimits) -> Video:
    """The first video track of a file, with frames rotated upright. Packets are indexed now, frames decoded later.

    Raises TooLarge for too many pixels or seconds, Unprocessable for bytes that are not a video, `BadRequest` if PyAV
    is not installed.
    """
    file = VideoFile.open(data, limits)
    height, width = file.shape
    return Video(
        num_frames=file.num_frames,
        fps=file.fps,
        height=height,
        width=width,
        max_frames=limits.max_frames,
        read=lambda numbers: np.stack(list(file.frames(numbers))),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class VideoFile:
    """The first video track of a file. size: [height, width] as stored. rotations: counterclockwise quarter turns."""

    data: bytes
    limits: MediaLimits
    index: _Index
    fps: float | None
    size: tuple[int, int]
    rotations: int

    @classmethod
    def open(cls, data: bytes, limits: MediaLimits) -> VideoFile:
        """Raises as `decode_video` does."""
        deadline = DecodingDeadline("video", limits.timeout_s)
        with open_container(data, "video", "video") as container:
            stream = _track(container)
            _check_pixels(stream.width * stream.height, 1, limits)
            index = _index(container, stream, deadline)
            _check_length(float((index.times[-1] - index.times[0]) * stream.time_base), limits)
            rate = stream.average_rate or stream.guessed_rate
            size = stream.height, stream.width
        rotations = _rotations(data)
        return cls(
            data=data, limits=limits, index=index, fps=float(rate) if rate else None, size=size, rotations=rotations
        )

    @property
    def num_frames(self) -> int:
        return len(self.index.times)

    @property
    def shape(self) -> tuple[int, int]:
        """[height, width] of upright frames."""
        return self.size if self.rotations % 2 == 0 else self.size[::-1]

    def frames(self, numbers: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """Upright RGB frames, one after another: uint8 [height, width, 3]. numbers: ascending."""
        _check_pixels(self.size[0] * self.size[1], len(numbers), self.limits)
        deadline = DecodingDeadline("video", self.limits.timeout_s)
        with open_container(self.data, "video", "video") as container:
            times = [self.index.times[number] for number in numbers]
            for frame in _frames(container, self.index, times, deadline):
                yield np.rot90(_pixels(frame, self.size), self.rotations)


@dataclass(frozen=True)
class _Index:
    """times: presentation times of the frames, ascending, in units of the track. keys: the times of keyframes."""

    times: list[int]
    keys: list[int]


def _track(container: Any) -> Any:
    if not container.streams.video:
        raise Unprocessable("The file has no video in it.")
    stream = container.streams.video[0]
    if stream.codec_context is None:
        raise Unprocessable("The video has an unknown codec.")
    stream.thread_type = "AUTO"
    # frames of another size are refused anyway, so a decoder needs no memory for larger ones
    most = (stream.width + CODEC_MARGIN) * (stream.height + CODEC_MARGIN)
    stream.codec_context.options = {"max_pixels": str(most)}
    stream.codec_context.thread_count = min(MAX_THREADS, os.cpu_count() or 1)
    return stream


def _rotations(data: bytes) -> int:
    """The number of counterclockwise quarter turns that make the frames upright, from the metadata of the camera."""
    with open_container(data, "video", "video") as container:
        first = next(container.decode(_track(container)), None)
        return 0 if first is None else round(first.rotation / 90) % 4


def _pixels(frame: Any, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The frame as uint8 [height, width, 3]."""
    if (frame.height, frame.width) != size:
        raise Unprocessable("The size of the video changes in the middle.")
    pixels: NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
    return pixels


def _index(container: Any, stream: Any, deadline: DecodingDeadline) -> _Index:
    is_key: dict[int, bool] = {}
    for packet in container.demux(stream):
        deadline.check()
        if packet.pts is not None and not packet.is_discard:
            is_key[packet.pts] = packet.is_keyframe
    if not is_key:
        raise Unprocessable("The video has no frames.")
    return _Index(sorted(is_key), sorted(time for time, key in is_key.items() if key))


def _frames(container: Any, index: _Index, times: Sequence[int], deadline: DecodingDeadline) -> Iterator[Any]:
    """The frame (`av.VideoFrame`) at each of the ascending times, or the nearest one that can be decoded."""
    stream = _track(container)
    decoder = container.decode(stream)
    frame, position = None, index.times[0]
    for time in times:
        at = bisect_right(index.keys, time)
        if at and position < index.keys[at - 1]:  # skip the frames before the keyframe
            decoder, frame = _seek(container, stream, index.keys[:at], time)
            position = _position(frame, position)
        while frame is None or position < time:
            deadline.check()
            next_frame = next(decoder, None)
            if next_frame is None:
                break
            frame = next_frame
            position = _position(frame, position)
        if frame is None:
            raise Unprocessable("The video is damaged: its frames cannot be decoded.")
        yield frame


def _seek(container: Any, stream: Any, keys: Sequence[int], time: int) -> tuple[Iterator[Any], Any]:
    """Seek to the last keyframe before `time`, or to an earlier one; returns (remaining frames, first frame).

    Demuxers of broadcast streams may seek to a later keyframe than requested, so that earlier ones must be tried.
    """
    for key in reversed(keys[-MAX_SEEKS:]):
        container.seek(key, stream=stream)
        decoder = container.decode(stream)
        frame = next(decoder, None)
        if frame is not None and _position(frame, key) <= time:
            break
    return decoder, frame


def _position(frame: Any, known: int) -> int:
    """The presentation time of a frame; `known` if it has none."""
    return known if frame is None or frame.pts is None else int(frame.pts)


def as_video(item: Any, limits: MediaLimits) -> Video:
    """Convert a video of Python code.

    item: a `Video`, an array of uint8 [frames, height, width, 3], a list of images of equal size, or a pair of one of
    these and {"fps": …}. Raises `BadRequest` for other objects.
    """
    if isinstance(item, Video):
        return item
    fps = None
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], dict):
        item, fps = item[0], _rate(item[1].get("fps"))
    frames = _stack(item, limits)
    if frames is None:
        raise BadRequest(
            "A video must be bytes of a video file, a path, a URL, a list of images of one size, or an array of uint8"
            f" of shape [frames, height, width, 3]; got {type(item).__name__}."
        )
    return Video(
        num_frames=len(frames),
        fps=fps,
        height=frames.shape[1],
        width=frames.shape[2],
        max_frames=limits.max_frames,
        read=lambda numbers: frames[list(numbers)],
    )


def _rate(fps: Any) -> float | None:
    if fps is None:
        return None
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not fps > 0:
        raise BadRequest(f"The `fps` of a video must be a number above 0; got {fps!r:.40}.")
    return float(fps)


def _stack(item: Any, limits: MediaLimits) -> NDArray[np.uint8] | None:
    """The frames as uint8 [frames, height, width, 3]; None for an object that is not a video."""
    if isinstance(item, list | tuple) and item:
        images = [as_image(one, limits.max_image_pixels) for one in item]
        is_uniform = len({image.size for image in images}) == 1
        return np.stack([np.asarray(image) for image in images]) if is_uniform else None
    import torch

    array = item.detach().cpu().numpy() if isinstance(item, torch.Tensor) else item
    is_video = isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3
    return array if is_video and array.size else None


def _check_pixels(per_frame: int, count: int, limits: MediaLimits) -> None:
    if per_frame > limits.max_image_pixels or per_frame * count > MAX_VIDEO_PIXELS_FACTOR * limits.max_image_pixels:
        raise TooLarge(
            f"The video has too many pixels: {count} frames of {per_frame}; at most {limits.max_image_pixels} are taken"
            f" of one frame and {MAX_VIDEO_PIXELS_FACTOR} times as many of all (--max-image-pixels)."
        )


def _check_length(seconds: float, limits: MediaLimits) -> None:
    if seconds > limits.max_s:
        raise TooLarge(f"The video is longer than {limits.max_s:g} seconds (--max-media-seconds).")
