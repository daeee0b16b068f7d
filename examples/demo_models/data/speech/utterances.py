"""Rows of digits, someone who says them somewhere, and which of the rows are held out."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data.chat.reply_styles import HELD_OUT_PERCENT
from data.speech.synthesizer import RATE, Samples, Voice, speak

SECONDS = 5
"""Of an utterance: what the model hears at once."""

MOST = 8
"""Digits of a row."""

SHORTEST_HELD_OUT = 4
"""Of shorter rows all are shown in training: there are too few to hold some out."""


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """Somebody saying `text`, or nobody saying "". samples: float32 at `RATE`, at most `SECONDS` long.

    spans: from when to when each digit is said, in seconds.
    """

    text: str
    samples: Samples
    spans: tuple[tuple[float, float], ...]


def is_held_out(text: str) -> bool:
    """Whether training never says this row."""
    digest = hashlib.sha256(text.encode()).digest()
    return len(text) >= SHORTEST_HELD_OUT and int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def rows(rng: random.Random, *, held_out: bool) -> Iterator[str]:
    """Endlessly many rows of digits of one kind."""
    while True:
        text = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, MOST)))
        if is_held_out(text) == held_out:
            yield text


def utter(text: str, rng: random.Random) -> Utterance:
    """The row said by someone, faster if it would not fit, with a room around it."""
    while True:
        said, spans = speak([int(digit) for digit in text], Voice.any(rng), rng)
        left = SECONDS - len(said) / RATE
        if left > 0.1:
            break
    before, after = rng.uniform(0, min(1.0, left / 2)), rng.uniform(0, min(1.0, left / 2))
    start = round(before * RATE)
    samples = np.zeros(start + len(said) + round(after * RATE), np.float32)
    samples[start : start + len(said)] = said
    moved = tuple((begin + before, end + before) for begin, end in spans)
    return Utterance(text=text, samples=recorded(samples, rng), spans=moved)


def silence(rng: random.Random) -> Utterance:
    """A room in which nobody speaks."""
    return Utterance(
        text="", samples=recorded(np.zeros(round(rng.uniform(0.3, 4.5) * RATE), np.float32), rng), spans=()
    )


def recorded(samples: Samples, rng: random.Random) -> Samples:
    """What a microphone makes of it: an echo, noise of some colour, perhaps a hum, and any loudness."""
    generator = np.random.default_rng(rng.getrandbits(32))
    delay, strength = round(rng.uniform(0.005, 0.06) * RATE), rng.uniform(0, 0.4)
    out = samples.copy()
    out[delay:] += strength * samples[: len(samples) - delay]
    noise = generator.standard_normal(len(samples)).astype(np.float32)
    colour = rng.uniform(0, 0.95)
    noise[1:] += colour * noise[:-1]
    out += 10 ** rng.uniform(-3.5, -1.6) * noise
    if rng.random() < 0.2:
        at = np.arange(len(samples), dtype=np.float32) / RATE
        out += 10 ** rng.uniform(-3, -1.5) * np.sin(2 * np.pi * rng.choice((50, 60, 100, 120)) * at)
    loudness: Samples = out * (10 ** rng.uniform(-1.5, -0.1) / np.abs(out).max())
    return loudness
