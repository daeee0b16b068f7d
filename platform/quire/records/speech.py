"""Transcribers: how an audio model is prompted to transcribe or translate speech, and how its answer is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.records.context import Context


@dataclass(frozen=True, kw_only=True)
class SpeechTask:
    """What to do with one window of speech.

    language: code of the spoken language, one of `TranscriberImpl.languages`; None = the model detects it.
    translate: translate instead of transcribing. to_language: code of the target, None = the model's default.
    timestamps: whether to divide the text into segments with times. previous: the text before this window.
    """

    language: str | None = None
    translate: bool = False
    to_language: str | None = None
    timestamps: bool = False
    previous: str = ""


@dataclass(frozen=True, kw_only=True)
class LanguageDetection:
    """How one step after `prompt_ids` detects the language: the most likely of the ids in `languages` (id → code).

    silence_id: the id that the model gives to a window without speech, None = the model has none.
    """

    prompt_ids: Sequence[int]
    languages: Mapping[int, str]
    silence_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Tokens `begin` to `end` (exclusive) of an answer, which form one segment.

    text_ids: those of them that are text; the others are timestamps and the like.
    start_s, end_s: seconds from the beginning of the window, None = the answer does not say.
    """

    begin: int
    end: int
    text_ids: Sequence[int] = field(default=())
    start_s: float | None = None
    end_s: float | None = None


class TranscriberImpl(Protocol):
    """Prompts of one model for transcription and translation.

    Its methods are quick and pure. Worker threads call them, possibly several at once. They raise
    `quire.errors.BadRequest` for a task that the model cannot do.
    """

    @property
    def sampling_rate(self) -> int:
        """Samples per second that the model takes; recordings are split into windows at this rate."""
        ...

    @property
    def window_s(self) -> float:
        """Seconds of the longest window that the model takes."""
        ...

    @property
    def languages(self) -> Mapping[str, str]:
        """English names ("English") of the spoken languages, by code ("en"); {} = the language cannot be chosen.

        If there is exactly one, every task has that language.
        """
        ...

    def prompt(self, task: SpeechTask) -> Sequence[int]:
        """Token ids of the prompt, with the ids of the audio marker where the prompt has one."""
        ...

    def language_detection(self) -> LanguageDetection | None:
        """How to detect the language for a task with `language=None`; None = the prompt needs no language."""
        ...

    def params(self, task: SpeechTask) -> Mapping[str, Any]:
        """Fields of `quire.params.sampling.SamplingParams` that the task needs; defaults where users may set them."""
        ...

    def segments(self, token_ids: Sequence[int], task: SpeechTask) -> Sequence[Segment]:
        """The segments of an answer in order, without the end-of-text token; one segment without timestamps."""
        ...


@dataclass(frozen=True)
class Transcriber:
    """Makes an architecture with the modality "audio" serve `/v1/audio/…`.

    translates: whether models of the architecture can translate speech.
    """

    name: str
    architecture: str
    build: Callable[[Context], TranscriberImpl]
    translates: bool = True
