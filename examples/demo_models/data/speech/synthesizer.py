"""A voice that says digits in English: no recording, but formants, as speech synthesisers of the eighties had them.

digits ─▶ sounds with targets ─▶ tracks every 5 ms ─▶ a buzz and a hiss, shaped by what mouth and throat let through
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

RATE = 16_000
HOP = 80
"""Samples between two points of a track: 5 ms."""

SIZE = 240
"""Samples of the overlapping pieces that are shaped one by one; with what they ring on, LENGTH."""

LENGTH = 480
FREQUENCIES = np.fft.rfftfreq(LENGTH, 1 / RATE).astype(np.float32)
BANDWIDTHS = (70.0, 100.0, 160.0, 250.0)
LOUDNESS = (1.0, 0.6, 0.3, 0.12)
"""Of the four formants."""

Samples = NDArray[np.float32]
Track = NDArray[np.float32]


@dataclass(frozen=True)
class Sound:
    """A target of the mouth. formants: in Hz, the fourth is everyone's own; buzz: of the vocal cords, and hiss, how
    loud; around, width: where the hiss lies, in Hz; ms: how long."""

    formants: tuple[int, int, int]
    buzz: float
    ms: int
    hiss: float = 0.0
    around: int = 4000
    width: int = 1500


SOUNDS = {
    "iy": Sound((280, 2250, 2950), 1.0, 110),
    "ih": Sound((400, 1950, 2550), 1.0, 90),
    "eh": Sound((550, 1800, 2480), 1.0, 100),
    "ah": Sound((640, 1200, 2400), 1.0, 90),
    "aa": Sound((740, 1100, 2450), 1.0, 110),
    "ao": Sound((560, 850, 2400), 1.0, 120),
    "uw": Sound((310, 900, 2240), 0.9, 130),
    "r": Sound((330, 1100, 1450), 0.7, 60),
    "w": Sound((300, 620, 2150), 0.6, 60),
    "n": Sound((270, 1650, 2600), 0.35, 75),
    "z": Sound((280, 1700, 2600), 0.3, 80, 0.25, 6200, 1300),
    "v": Sound((280, 1100, 2350), 0.35, 55, 0.06, 4500, 2500),
    "s": Sound((350, 1700, 2600), 0.0, 105, 0.5, 6000, 1200),
    "f": Sound((350, 1100, 2350), 0.0, 95, 0.14, 5000, 3000),
    "th": Sound((350, 1400, 2500), 0.0, 85, 0.1, 6000, 2200),
    "hush": Sound((350, 1600, 2600), 0.0, 45),
    "t": Sound((350, 1750, 2650), 0.0, 35, 0.45, 4600, 1500),
    "k": Sound((350, 1900, 2500), 0.0, 30, 0.4, 2100, 700),
}

WORDS = (
    "z iy r ao uw",
    "w ah n",
    "hush t uw",
    "th r iy",
    "f ao r",
    "f aa iy v",
    "s ih hush k s",
    "s eh v ah n",
    "eh iy hush t",
    "n aa iy n",
)
"""How the digits are said."""


@dataclass(frozen=True, kw_only=True)
class Voice:
    """Who speaks. pitch: of the cords, in Hz; swing: how far it moves; throat: factor of all formants; pace: of time;
    breath: hiss in the buzz; tilt: how fast the buzz fades above 500 Hz."""

    pitch: float
    swing: float
    throat: float
    pace: float
    breath: float
    tilt: float

    @classmethod
    def any(cls, rng: random.Random) -> Voice:
        """Someone's."""
        height = rng.random()  # children and tall men, and all between
        return cls(
            pitch=80 * 3.2**height * rng.uniform(0.85, 1.15),
            swing=rng.uniform(0.02, 0.2),
            throat=(0.88 + 0.3 * height) * rng.uniform(0.95, 1.05),
            pace=rng.uniform(0.75, 1.25),
            breath=rng.uniform(0.0, 0.15),
            tilt=rng.uniform(0.6, 1.3),
        )


@dataclass(frozen=True)
class Tracks:
    """What changes while someone speaks, at each point: formants [points, 3]; the others [points]."""

    formants: Track
    buzz: Track
    hiss: Track
    around: Track
    width: Track


def speak(digits: Sequence[int], voice: Voice, rng: random.Random) -> tuple[Samples, list[tuple[float, float]]]:
    """Float32 samples, the loudest 1; and from when to when each digit is said, in seconds."""
    parts: list[tuple[Sound, float]] = []
    spans, now = [], 0.0
    for number, digit in enumerate(digits):
        if number:
            pause = rng.uniform(0.0, 0.25) / voice.pace
            parts.append((SOUNDS["hush"], pause))
            now += pause
        begin = now
        for name in WORDS[digit].split():
            sound = SOUNDS[name]
            seconds = sound.ms / 1000 * rng.uniform(0.8, 1.3) / voice.pace
            parts.append((sound, seconds))
            now += seconds
        spans.append((begin, now))
    tracks = _tracks(parts, voice, rng)
    generator = np.random.default_rng(rng.getrandbits(32))
    samples = _shaped(tracks, voice, _buzz(len(tracks.buzz), voice, rng), generator)
    return (samples / np.abs(samples).max()).astype(np.float32), spans


def _tracks(parts: Sequence[tuple[Sound, float]], voice: Voice, rng: random.Random) -> Tracks:
    """The targets one after another, with the mouth on its way from each to the next."""
    ends = np.cumsum([seconds for _, seconds in parts])
    owner = np.searchsorted(ends, np.arange(int(ends[-1] * RATE / HOP)) * HOP / RATE, side="right")
    sounds = [sound for sound, _ in parts]
    formants = np.array(
        [[f * voice.throat * rng.uniform(0.94, 1.06) for f in sound.formants] for sound in sounds], np.float32
    )

    def of(name: str) -> Track:
        values = np.array([getattr(sound, name) for sound in sounds], np.float32)
        return values[owner]

    slow, quick = round(9 / voice.pace), 3
    return Tracks(
        formants=np.stack([_smooth(line, slow) for line in formants[owner].T], 1),
        buzz=_smooth(of("buzz"), quick),
        hiss=_smooth(of("hiss"), quick),
        around=of("around") * np.float32((1 + voice.throat) / 2),
        width=of("width"),
    )


def _smooth(track: Track, points: int) -> Track:
    """The mean of so many neighbours."""
    padded = np.pad(track, (points // 2, points - 1 - points // 2), mode="edge")
    return np.convolve(padded, np.full(points, 1 / points, np.float32), "valid")


def _buzz(points: int, voice: Voice, rng: random.Random) -> Track:
    """A pulse each time the cords close: [points * HOP]."""
    at = np.linspace(0, 1, points * HOP)
    waves = np.sin(2 * np.pi * (rng.uniform(0.5, 3) * at + rng.random())) + 0.5 * (0.5 - at)
    phase = np.cumsum(voice.pitch * 2 ** (voice.swing * waves) / RATE)
    pulses = np.diff(np.floor(phase), prepend=0.0)
    return (pulses * np.sqrt(RATE / voice.pitch)).astype(np.float32)


def _shaped(tracks: Tracks, voice: Voice, buzz: Track, generator: np.random.Generator) -> Track:
    """Samples: pieces of buzz and hiss, what is let through of each, and all put together."""
    points = len(tracks.buzz)
    window = np.hanning(SIZE + 1)[:-1].astype(np.float32)
    through = np.zeros((points, len(FREQUENCIES)), np.float32)
    for i, (width, loudness) in enumerate(zip(BANDWIDTHS, LOUDNESS, strict=True)):
        at = tracks.formants[:, i, None] if i < 3 else np.float32(3600 * voice.throat)
        through += loudness / (1 + ((FREQUENCIES - at) / width) ** 2)
    through *= (1 + FREQUENCIES / 500) ** -voice.tilt * tracks.buzz[:, None]
    hissing = np.exp(-0.5 * ((FREQUENCIES - tracks.around[:, None]) / tracks.width[:, None]) ** 2)
    hissing *= 0.5 * tracks.hiss[:, None]
    noise = generator.standard_normal(points * HOP, np.float32)
    spectra = _spectra(buzz, window) * through + _spectra(noise, window) * (hissing + voice.breath * through)
    pieces = fft.irfft(spectra, axis=1)  # [points, LENGTH]
    out = np.zeros((points + LENGTH // HOP) * HOP, np.float32)
    for start in range(0, LENGTH, HOP):  # piece i begins at i * HOP; its strips add up
        strip = pieces[:, start : start + HOP].reshape(-1)
        out[start : start + len(strip)] += strip
    return out[: points * HOP]


def _spectra(samples: Track, window: Track) -> NDArray[np.complex64]:
    """Of the pieces that begin at each point: [points, frequencies]."""
    pieces = np.lib.stride_tricks.sliding_window_view(np.pad(samples, (0, SIZE)), SIZE)[: len(samples) : HOP]
    spectra: NDArray[np.complex64] = fft.rfft(pieces * window, LENGTH, axis=1)
    return spectra
