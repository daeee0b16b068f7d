"""Transcripts of recordings: the text, and its segments with times."""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TranscriptSegment:
    """A segment of a transcript, such as a sentence.

    start_s, end_s: seconds from the begin of the recording. window_s: begin of its window in the recording. text: as
    the model wrote it. token_ids: tokens of the text, including timestamps. avg_logprob: mean log-probability of the
    tokens, None = not requested. no_speech_prob: probability that the window contains no speech, None = the model does
    not estimate it.
    """

    start_s: float
    end_s: float
    window_s: float
    text: str
    token_ids: tuple[int, ...]
    avg_logprob: float | None = None
    no_speech_prob: float | None = None

    @property
    def compression_ratio(self) -> float:
        """Ratio of the sizes of the text and of its zlib compression; far above 2 if the text repeats itself."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, kw_only=True)
class Transcription:
    """The transcript of a recording.

    language: English name of the text's language in lower case; None = unknown. segments: () without timestamps.
    """

    text: str
    duration_s: float
    language: str | None = None
    segments: tuple[TranscriptSegment, ...] = ()


class TextJoiner:
    """Joins the texts of consecutive windows while they arrive.

    A space is inserted between windows, except in scripts without spaces. Whitespace around the whole text is dropped.
    """

    def __init__(self) -> None:
        self._last = ""
        self._held = ""
        self._is_new_window = False

    def next_window(self) -> None:
        """Begin the next window: later text belongs to it."""
        self._is_new_window = True

    def push(self, text: str) -> str:
        """Add text; returns the new part of the joined text. Trailing whitespace is held back."""
        text = self._held + text
        stripped = text.lstrip()
        if self._is_new_window and self._last and stripped:
            has_space = len(stripped) < len(text) or (_uses_spaces(self._last) and _uses_spaces(stripped[0]))
            text = f" {stripped}" if has_space else stripped
        if stripped:
            self._is_new_window = False
        if not self._last:
            text = stripped
        added = text.rstrip()
        self._held = text[len(added) :]
        self._last = added[-1:] or self._last
        return added


def join_texts(texts: Sequence[str]) -> str:
    """The texts of windows joined into one."""
    joiner = TextJoiner()
    parts = []
    for text in texts:
        parts.append(joiner.push(text))
        joiner.next_window()
    return "".join(parts)


def _uses_spaces(char: str) -> bool:
    """Whether a character belongs to a script that puts spaces between words."""
    return unicodedata.east_asian_width(char) not in ("W", "F")
