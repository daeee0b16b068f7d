"""Transcription with models that take audio in a chat: one message with the audio and an instruction.

This module is not a plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.errors import BadRequest
from quire.records import Context, LanguageDetection, Segment, SpeechTask

RATE, WINDOW_S = 16_000, 30.0
_WORDS = "\ue000words\ue000"
"""Stands for the instruction when the template is rendered, once."""


class UntimedPrompts:
    """What prompts have in common for models that write a transcript without times, all of it as one segment."""

    sampling_rate, window_s = RATE, WINDOW_S

    def refuse_times(self, task: SpeechTask) -> None:
        """Raises BadRequest for a task with timestamps."""
        if task.timestamps:
            raise BadRequest("This model gives no times; `response_format` must be json or text.", "response_format")

    def language_detection(self) -> LanguageDetection | None:
        """The model is never asked for the language alone."""
        return None

    def params(self, task: SpeechTask) -> Mapping[str, Any]:
        """Needs no parameters of its own."""
        return {}

    def segments(self, token_ids: Sequence[int], task: SpeechTask) -> Sequence[Segment]:
        """One segment: the whole answer."""
        return [Segment(begin=0, end=len(token_ids), text_ids=tuple(token_ids))]


class ChatTranscriber(UntimedPrompts):
    """Prompts of one model. languages: names by code."""

    def __init__(
        self,
        context: Context,
        instruct: Callable[[SpeechTask], str],
        languages: Mapping[str, str],
        content: Callable[[str], Any],
    ) -> None:
        """instruct: words a task. content: the message with such words, for the chat template."""
        self._tokenizer, self._instruct = context.tokenizer, instruct
        self.languages = languages
        self._around = _around_words(context, content(_WORDS))

    def prompt(self, task: SpeechTask) -> Sequence[int]:
        """Raises BadRequest for text before the audio, for timestamps, and without a chat template."""
        if self._around is None:
            raise BadRequest("This model has no chat template that can be used, which speech to text needs.", "model")
        if task.previous.strip():
            raise BadRequest("This model takes no text before the transcript; leave `prompt` out.", "prompt")
        self.refuse_times(task)
        text = self._instruct(task).join(self._around)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def _around_words(context: Context, content: Any) -> list[str] | None:
    """The text before and after the words in a message; None without a chat template that writes them once."""
    if context.render_chat is None:
        return None
    try:
        parts = context.render_chat([{"role": "user", "content": content}]).split(_WORDS)
    except BadRequest:
        return None
    return parts if len(parts) == 2 else None
