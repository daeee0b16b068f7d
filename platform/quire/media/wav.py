"""Reads WAV files without an audio library: integers of 8, 16, 24 and 32 bits and floats of 32 and 64.

Files with other codings, which are rare, are left to the audio libraries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import unpack_from

import numpy as np
from numpy.typing import NDArray

from quire.errors import QuireError, Unprocessable

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
SUBFORMAT = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"
"""The bytes after the coding in the last field of an extensible header."""

WIDTHS = {PCM: (1, 2, 3, 4), FLOAT: (4, 8)}
"""Bytes per sample, by coding."""

BLOCK = 1 << 16
"""Samples converted at once."""

MAX_CHUNKS = 4096
"""Chunks of a file that are read. Programs write about ten; a file of empty ones could have millions."""


@dataclass(frozen=True, kw_only=True)
class Wav:
    """The encoded samples of a file. rate: samples per second in the header. width: bytes per sample."""

    rate: int
    channels: int
    width: int
    coding: int
    body: memoryview

    @property
    def num_frames(self) -> int:
        """The number of samples per channel, without an incomplete last frame."""
        return len(self.body) // (self.channels * self.width)

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Blocks of the average of the channels: float32 [samples], from -1 to 1."""
        size = self.channels * self.width
        step = max(BLOCK // self.channels, 1)
        for at in range(0, self.num_frames, step):
            frames = self.body[at * size : min(at + step, self.num_frames) * size]
            yield self._floats(frames).reshape(-1, self.channels).mean(axis=1, dtype=np.float32)

    def _floats(self, frames: memoryview) -> NDArray[np.float32]:
        if self.coding == FLOAT:
            return np.frombuffer(frames, f"<f{self.width}").astype(np.float32)
        if self.width == 1:
            return (np.frombuffer(frames, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
        if self.width == 3:
            wide = np.zeros((len(frames) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(frames, np.uint8).reshape(-1, 3)
            return wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
        return np.frombuffer(frames, f"<i{self.width}").astype(np.float32) / np.float32(2 ** (8 * self.width - 1))


def is_wav(data: bytes) -> bool:
    """Whether the bytes begin as a WAV file does, which may have any coding."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def is_plain_wav(data: bytes) -> bool:
    """Whether `parse` reads the file, or refuses it."""
    try:
        return parse(data) is not None
    except QuireError:
        return True


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The name of each chunk of a WAV file, the offset of its body and its declared size. Raises Unprocessable."""
    at, count = 12, 0
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        yield name, at + 8, size
        at, count = at + 8 + size + size % 2, count + 1
        if count > MAX_CHUNKS:
            raise Unprocessable(f"The audio is a WAV file with more than {MAX_CHUNKS} chunks.")


def parse(data: bytes) -> Wav | None:
    """The samples of a WAV file; None for other formats and codings. Raises Unprocessable if there are no samples."""
    if not is_wav(data):
        return None
    header = b""
    for name, begin, size in chunks(data):
        if name == b"fmt ":
            header = data[begin : begin + min(size, 40)]
        if name == b"data":
            return _wav(header, memoryview(data)[begin : begin + size])
    raise Unprocessable("The audio is a WAV file without samples.")


def _wav(header: bytes, body: memoryview) -> Wav | None:
    if len(header) < 16:
        raise Unprocessable("The audio is a WAV file whose header does not say how its samples are coded.")
    coding, channels, rate, _, size, bits = unpack_from("<HHIIHH", header)
    if coding == EXTENSIBLE and len(header) >= 40 and header[26:40] == SUBFORMAT:
        coding = int.from_bytes(header[24:26], "little")
    width = bits // 8
    if width not in WIDTHS.get(coding, ()) or bits % 8 or size != channels * width or not channels:
        return None
    return Wav(rate=rate, channels=channels, width=width, coding=coding, body=body)
