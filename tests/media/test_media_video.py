"""Video from bytes and from Python: the frames that are asked for, and no more."""

import contextlib
import io
import struct
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from quire.errors import BadRequest, TooLarge, Unprocessable
from quire.media.limits import MediaLimits
from quire.media.video import as_video, decode_video

LIMITS = MediaLimits(max_s=10, max_frames=16, max_image_pixels=20_000)
COUNT, FPS, SIZE = 50, 10, (64, 48)


BARS = 6


def barcode(number):
    """The number's bits as dark and light bars, which no codec mistakes for one another: uint8 [height, width, 3]."""
    bits = np.array([number >> bar & 1 for bar in range(BARS)], np.uint8)
    line = np.repeat(40 + 170 * bits, -(-SIZE[0] // BARS))[: SIZE[0]]
    return np.ascontiguousarray(np.broadcast_to(line[None, :, None], (SIZE[1], SIZE[0], 3)))


def read(frames):
    """The numbers that frames show."""
    width = -(-SIZE[0] // BARS)
    middles = frames[:, SIZE[1] // 2, [bar * width + width // 2 for bar in range(BARS)], 0]
    return [int(sum((value > 125) << bar for bar, value in enumerate(bars))) for bars in middles]


def film(count=COUNT, size=SIZE, form="mp4", codec="mpeg4", gop=8):
    """Frame i shows its number; key frames are `gop` apart, and others lie between."""
    av = pytest.importorskip("av")
    data = io.BytesIO()
    with av.open(data, "w", format=form) as container:
        stream = container.add_stream(codec, rate=FPS)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.gop_size = gop
        for number in range(count):
            pixels = barcode(number) if size == SIZE else np.zeros((size[1], size[0], 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return data.getvalue()


@pytest.mark.parametrize(("form", "gop"), [("mp4", 8), ("matroska", 8), ("mp4", 1), ("mp4", 100), ("mpegts", 8)])
@pytest.mark.parametrize("codec", ["mpeg4", "mpeg2video", "libx264"])
def test_the_frames_asked_for_are_the_ones_that_come(form, gop, codec):
    with contextlib.suppress(ImportError):
        import av

        if codec not in av.codecs_available:
            pytest.skip(f"PyAV was built without {codec}")
    video = decode_video(film(form=form, codec=codec, gop=gop), LIMITS)
    assert (video.num_frames, video.fps, video.width, video.height) == (COUNT, FPS, *SIZE)
    for numbers in ([0], [49], [3, 4, 30, 31, 48], [7, 7, 8], video.uniform(16)):
        frames = video.frames(numbers)
        assert frames.shape == (len(numbers), SIZE[1], SIZE[0], 3)
        assert frames.dtype == np.uint8
        assert read(frames) == list(numbers)


@pytest.mark.parametrize("turns", range(4))
def test_a_video_is_upright_however_the_phone_was_held(turns):
    data = film(5)
    upright = np.rot90(decode_video(data, LIMITS).frames(range(5)), turns, (1, 2))
    matrix = [(1, 0, 0, 1), (0, -1, 1, 0), (-1, 0, 0, -1), (0, 1, -1, 0)][turns]
    a, b, c, d = (number << 16 for number in matrix)
    at = data.index(b"tkhd") + 44  # the header of the track, and where the matrix is in it
    held = data[:at] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30) + data[at + 36 :]
    video = decode_video(held, LIMITS)
    assert (video.height, video.width) == upright.shape[1:3]
    assert np.array_equal(video.frames(range(5)), upright)


def test_frames_are_spread_evenly():
    video = as_video((np.zeros((50, 2, 2, 3), np.uint8), {"fps": 10}), LIMITS)
    assert video.uniform(5) == [0, 10, 20, 30, 40]
    assert video.uniform(100) == video.uniform(16)
    assert len(video.uniform(16)) == 16
    assert video.per_second(1) == [0, 10, 20, 30, 40]
    assert video.per_second(0.01) == [0]
    assert as_video(np.zeros((3, 2, 2, 3), np.uint8), LIMITS).per_second(1) == [0, 1, 2]


def test_a_video_keeps_to_its_limits():
    whole = film()
    for limits, said in (
        (MediaLimits(max_s=4), r"longer than 4 seconds \(--max-media-seconds\)"),
        (MediaLimits(max_image_pixels=64 * 48 - 1), r"too many pixels: 1 frames of 3072"),
    ):
        with pytest.raises(TooLarge, match=said):
            decode_video(whole, limits)
    with pytest.raises(TooLarge, match=r"At most 16 frames are taken of a video \(--max-video-frames\)"):
        decode_video(whole, LIMITS).frames(range(17))
    with pytest.raises(TooLarge, match="too many pixels: 5 frames of 3072"):
        decode_video(whole, MediaLimits(max_image_pixels=64 * 48)).frames(range(5))
    with pytest.raises(Unprocessable, match=r"Decoding the video took longer than 0 seconds"):
        decode_video(whole, MediaLimits(timeout_s=0)).frames([1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"<html></html>",
        lambda: bytes(100),
        lambda: film()[:200],
        lambda: b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        lambda: b"ffconcat version 1.0\nfile /etc/passwd\n",
    ],
)
def test_what_is_no_video_or_refers_to_other_files_is_refused(make):
    pytest.importorskip("av")
    with pytest.raises(Unprocessable, match=r"^The video cannot be read: \w[^\[]+$"):
        decode_video(make(), LIMITS)


def test_an_empty_video_is_refused():
    with pytest.raises(Unprocessable, match="video is empty"):
        decode_video(b"", LIMITS)


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(BadRequest, match="cannot read video: it needs `pip install av`"):
        decode_video(b"x", LIMITS)


def test_frames_in_python_are_a_video_too():
    frames = np.arange(5 * 2 * 4 * 3, dtype=np.uint8).reshape(5, 2, 4, 3)
    for item in (frames, torch.from_numpy(frames), [Image.fromarray(frame) for frame in frames], list(frames)):
        video = as_video(item, LIMITS)
        assert (video.num_frames, video.fps, video.height, video.width) == (5, None, 2, 4)
        assert np.array_equal(video.frames([1, 3]), frames[[1, 3]])
    assert as_video(video, LIMITS) is video
    assert as_video((list(frames), {"fps": 2}), LIMITS).fps == 2


@pytest.mark.parametrize(
    "item",
    [
        5,
        [],
        np.zeros((2, 2, 3), np.uint8),
        np.zeros((0, 2, 2, 3), np.uint8),
        np.zeros((2, 2, 2, 3)),
        [np.zeros((2, 2, 3), np.uint8), np.zeros((2, 3, 3), np.uint8)],
        ["a.png"],
        (np.zeros((2, 2, 2, 3), np.uint8), {"fps": 0}),
        (np.zeros((2, 2, 2, 3), np.uint8), {"fps": "fast"}),
    ],
)
def test_what_is_no_video_in_python_is_refused(item):
    with pytest.raises(BadRequest, match=r"A video must be|An image must be|The `fps` of a video"):
        as_video(item, LIMITS)
