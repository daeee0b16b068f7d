"""Small audio, video and image files that declare or unpack to far more than they have."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image


def wav_header(channels: int, rate: int, size: int, bits: int = 16, name: bytes = b"RIFF") -> bytes:
    """The header of a WAV file that declares `size` bytes of samples."""
    block = min(channels * bits // 8, 65535)
    body = struct.pack("<4sI4s4sIHHIIHH", name, 0xFFFFFFFF, b"WAVE", b"fmt ", 16, 1, channels, rate, 0, block, bits)
    return body + struct.pack("<4sI", b"data", size)


def crowded_wav(count: int) -> bytes:
    """A WAV file of `count` empty chunks, and no samples."""
    return b"RIFF\xff\xff\xff\xffWAVE" + b"none\0\0\0\0" * count


def many_scans(count: int, size: tuple[int, int] = (2048, 2048)) -> bytes:
    """A JPEG file whose last scan is repeated: each goes over all pixels, and has a few bytes."""
    data = io.BytesIO()
    Image.new("RGB", size).save(data, "JPEG", progressive=True)
    file = data.getvalue()
    at = file.rindex(b"\xff\xda")
    return file[:at] + file[at:-2] * count + b"\xff\xd9"


def crc(data: bytes, bits: int, polynomial: int) -> int:
    """The check sum of FLAC: most significant bit first, from 0."""
    value, top, mask = 0, 1 << (bits - 1), (1 << bits) - 1
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = ((value << 1) ^ polynomial if value & top else value << 1) & mask
    return value


def _utf8(number: int) -> bytes:
    """A frame number in the coding of FLAC."""
    return chr(number).encode("utf-8", "surrogatepass")


def flac(num_frames: int, *, rate: int = 655_350, channels: int = 8, block: int = 65_535, declared: int = 0) -> bytes:
    """Silence: each frame has about 30 bytes and decodes to `block` samples of each channel. declared: samples."""
    numbers = (rate << 44) | ((channels - 1) << 41) | (15 << 36) | declared
    info = struct.pack(">HH", block, block) + bytes(6) + numbers.to_bytes(8, "big") + bytes(16)
    found = [b"fLaC\x80", len(info).to_bytes(3, "big"), info]
    for number in range(num_frames):
        # 16-bit block size at the end of the header; rate from the stream's info; 16 bits per sample
        head = struct.pack(">HBB", 0xFFF8, 0x70, ((channels - 1) << 4) | 0x08) + _utf8(number)
        head += struct.pack(">H", block - 1)
        frame = head + bytes([crc(head, 8, 0x07)]) + bytes(3) * channels  # constant subframes of 0
        found.append(frame + struct.pack(">H", crc(frame, 16, 0x8005)))
    return b"".join(found)


def film(
    form: str, codec: str, sizes: list[tuple[int, int]], *, rate: int = 10, streams: int = 1, gop: int = 1000
) -> bytes:
    """A video of black frames, of these widths and heights. Needs PyAV."""
    import av

    data = io.BytesIO()
    with av.open(data, "w", format=form) as container:
        made: list[Any] = [container.add_stream(codec, rate=rate) for _ in range(streams)]
        for stream in made:
            stream.width, stream.height = sizes[0]
            stream.pix_fmt = {"gif": "rgb8", "png": "rgb24", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
            stream.codec_context.gop_size = gop
        black = av.VideoFrame.from_ndarray(np.zeros((sizes[0][1], sizes[0][0], 3), np.uint8), format="rgb24")
        for number in range(len(sizes)):
            for stream in made:
                frame = black.reformat(format=stream.pix_fmt)
                frame.pts = number
                container.mux(stream.encode(frame))
        for stream in made:
            container.mux(stream.encode(None))
    return data.getvalue()


def patched(data: bytes, name: bytes, offset: int, content: bytes) -> bytes:
    """An MP4 file with other bytes at an offset after the name of its first box of this name."""
    at = data.index(name) + 4 + offset
    return data[:at] + content + data[at + len(content) :]


def sized(data: bytes, width: int, height: int) -> bytes:
    """The film in AVI with another size in its headers."""
    for name in (b"avih", b"strf"):
        at = data.index(name) + (4 + 4 + 32 if name == b"avih" else 4 + 4 + 4)
        data = data[:at] + struct.pack("<II", width, height) + data[at + 8 :]
    return data


def many_samples(count: int, constant_size: int = 0) -> bytes:
    """An MP4 file whose tables declare `count` samples in a few bytes: constant sizes and constant durations."""
    data = film("mp4", "mpeg4", [(64, 48)])
    data = patched(data, b"stsz", 4, struct.pack(">II", constant_size, count))
    data = patched(data, b"stts", 8, struct.pack(">II", count, 1))
    return patched(data, b"stsc", 8, struct.pack(">III", 1, count, 1))


def noise(form: str, codec: str) -> bytes:
    """A tone of a second in a container of PyAV."""
    import av

    data = io.BytesIO()
    with av.open(data, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=48_000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 48_000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 48_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return data.getvalue()


def packets_in_matroska(count: int, data: bytes) -> bytes:
    """A Matroska file whose packets are replaced by `count` packets of one byte, none of which can be decoded."""
    at = data.index(b"\x1f\x43\xb6\x75")  # the first cluster
    blocks = b"".join(b"\xa3\x85\x81" + struct.pack(">h", number % 30_000) + b"\x80\x00" for number in range(count))
    cluster = b"\xe7\x81\x00" + blocks
    return data[:at] + b"\x1f\x43\xb6\x75" + (len(cluster) | 1 << 56).to_bytes(8, "big") + cluster


AUDIO: Mapping[str, Callable[[], bytes]] = {
    "WAV that declares 4 GB": lambda: wav_header(1, 16_000, 0x70000000) + bytes(1000),
    "WAV of 65535 channels": lambda: wav_header(65_535, 16_000, 65_535 * 8, 8) + bytes(65_535 * 8),
    "WAV of 65535 channels of 16 bits": lambda: wav_header(65_535, 16_000, 65_535 * 8) + bytes(65_535 * 8),
    "WAV of 0 channels": lambda: wav_header(0, 16_000, 1000) + bytes(1000),
    "WAV of 1 Hz": lambda: wav_header(1, 1, 1000) + bytes(1000),
    "WAV of 4 GHz": lambda: wav_header(1, 0xFFFFFFFF, 1000) + bytes(1000),
    "WAV of 0 Hz": lambda: wav_header(1, 0, 1000) + bytes(1000),
    "WAV of 767999 Hz, 20 MB": lambda: wav_header(1, 767_999, 20_000_000, 8) + bytes(20_000_000),
    "WAV of 3 000 000 empty chunks": lambda: crowded_wav(3_000_000),
    "RF64 that declares 16 EB": lambda: (
        b"RF64\xff\xff\xff\xffWAVE" + b"ds64" + struct.pack("<IQQQI", 28, 1 << 63, 1 << 63, 1 << 62, 0)
        + wav_header(1, 16_000, 0xFFFFFFFF)[12:] + bytes(1000)
    ),
    "FLAC of 590 s at 655 kHz, silence": lambda: flac(5900, channels=1, declared=5900 * 65_535),
    "FLAC of 100 s at 655 kHz × 8, silence": lambda: flac(1000, declared=1000 * 65_535),
    "FLAC that declares 10⁹ samples": lambda: flac(2, declared=10**9),
    "FLAC of 18 hours at 655 kHz": lambda: flac(60_000, channels=1),
    "FLAC of 590 s at 4 kHz × 8": lambda: flac(36, rate=4000, declared=36 * 65_535),
    "AAC in MP4 of 10⁹ s by its time base": lambda: patched(
        noise("mp4", "aac"), b"mdhd", 12, struct.pack(">II", 1, 10**9)
    ),
    "MP3 of a second repeated 2000 times": lambda: noise("mp3", "mp3") * 2000,
}  # fmt: skip

VIDEO: Mapping[str, Callable[[], bytes]] = {
    "AVI that declares 65535 × 65535": lambda: sized(film("avi", "mpeg4", [(64, 48)] * 4), 65_535, 65_535),
    "AVI that declares 9000 × 9000": lambda: sized(film("avi", "mpeg4", [(64, 48)] * 4), 9000, 9000),
    "MP4, 5 frames of 8000 × 8000": lambda: film("mp4", "mpeg4", [(8000, 8000)] * 5),
    "MKV, 40 frames of 3000 × 3000": lambda: film("matroska", "mjpeg", [(3000, 3000)] * 40),
    "MKV, 300 frames of 4000 × 4000, one key frame": lambda: film("matroska", "mpeg4", [(4000, 4000)] * 300),
    "MP4 that declares 10⁸ samples of no bytes": lambda: many_samples(10**8),
    "MP4 that declares 10⁸ samples of one byte": lambda: many_samples(10**8, 1),
    "MP4 that declares 4·10⁹ samples": lambda: many_samples(0xFFFFFFFF, 1),
    "MP4 of 10⁹ s by its time base": lambda: patched(
        patched(film("mp4", "mpeg4", [(64, 48)] * 4), b"mdhd", 12, struct.pack(">II", 1, 10**9)),
        b"stts", 8, struct.pack(">II", 4, 10**9),
    ),
    "MKV, 3 000 000 packets of garbage": lambda: packets_in_matroska(
        3_000_000, film("matroska", "mpeg4", [(64, 48)] * 2)
    ),
    "MKV, 100 000 frames": lambda: film("matroska", "mpeg4", [(16, 16)] * 100_000),
    "MPEG-TS, the size changes in the middle": lambda: film("mpegts", "mpeg2video", [(64, 48)] * 9)
    + film("mpegts", "mpeg2video", [(1920, 1080)] * 9),
    "MKV, 100 video tracks": lambda: film("matroska", "mpeg4", [(64, 48)] * 3, streams=100),
    "MP4 in MP4, 200 000 boxes deep": lambda: film("mp4", "mpeg4", [(64, 48)])[:32]
    + b"".join(struct.pack(">I4s", 8 * (200_000 - n), b"moov") for n in range(200_000)),
    "GIF, 20 000 frames": lambda: film("gif", "gif", [(64, 48)] * 20_000),
    "GIF of 65535 × 65535": lambda: b"GIF89a" + struct.pack("<HH", 65_535, 65_535)
    + film("gif", "gif", [(64, 48)] * 2)[10:],
}  # fmt: skip

IMAGES: Mapping[str, Callable[[], bytes]] = {
    "JPEG of 2048 × 2048, 4000 scans": lambda: many_scans(4000),
    "JPEG of 2048 × 2048, 40 000 scans": lambda: many_scans(40_000),
    "GIF of 1000 frames as an image": lambda: film("gif", "gif", [(640, 480)] * 1000),
}
