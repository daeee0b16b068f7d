"""Audio as clients send it: 16-bit PCM, or G.711 with 8 bits a sample, made into a WAV file."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

PCM, ULAW, ALAW = "audio/pcm", "audio/pcmu", "audio/pcma"
G711_RATE = 8000
MIN_RATE, MAX_RATE = 8000, 48_000


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """A coding with its sample rate, one channel. name: `PCM`, `ULAW` or `ALAW`."""

    name: str = PCM
    rate: int = 24_000

    @property
    def sample_bytes(self) -> int:
        return 2 if self.name == PCM else 1

    def seconds(self, num_bytes: int) -> float:
        """The length of audio of so many bytes."""
        return num_bytes / (self.rate * self.sample_bytes)

    def described(self) -> dict[str, Any]:
        """The object of the API."""
        return {"type": self.name, "rate": self.rate} if self.name == PCM else {"type": self.name}


def wav_file(audio: bytes, given: AudioFormat) -> bytes:
    """A WAV file of 16-bit samples. Blocks."""
    if given.name != PCM:
        audio = _expanded(audio, given.name == ULAW)
    size, rate = len(audio), given.rate
    fields = (b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", size)
    return struct.pack("<4sI4s4sIHHIIHH4sI", *fields) + audio


def _expanded(audio: bytes, is_ulaw: bool) -> bytes:
    """16-bit samples of the 8-bit codes of ITU-T G.711, in the machine's order of bytes, which is the one of WAV."""
    import numpy as np  # a server without speech needs none

    codes: NDArray[np.int32] = np.arange(256, dtype=np.int32)
    codes = 255 - codes if is_ulaw else codes ^ 0x55
    exponent, mantissa = codes >> 4 & 7, codes & 15
    if is_ulaw:
        size = ((mantissa * 8 + 132) << exponent) - 132
        values = np.where(codes & 128, -size, size)
    else:
        size = np.where(exponent == 0, mantissa * 16 + 8, (mantissa * 16 + 264) << np.maximum(exponent - 1, 0))
        values = np.where(codes & 128, size, -size)
    return values.astype("<i2")[np.frombuffer(audio, np.uint8)].tobytes()
