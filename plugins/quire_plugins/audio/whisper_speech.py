"""Prompts of Whisper for transcription and translation, and the segments of its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from quire.errors import BadRequest, CheckpointError
from quire.records import Context, LanguageDetection, Segment, SpeechTask
from quire_plugins.audio.whisper_inputs import SpeechProcessor
from quire_plugins.audio.whisper_rules import end_of_text, settings_of

MULTILINGUAL_VOCABULARY = 51_865
"""Vocabulary size; smaller models are English-only, unless generation_config.json says otherwise."""


class WhisperPrompts:
    """The prompts of one model:

    <|startofprev|> text before <|startoftranscript|><|en|><|transcribe|><|notimestamps|>

    English-only models have neither the language nor the task in theirs.
    """

    def __init__(self, context: Context) -> None:
        """Raises CheckpointError for a folder without Whisper's tokens."""
        window, settings = SpeechProcessor(context), settings_of(context)
        self.sampling_rate, self.window_s = window.rate, window.window_s
        self._step_s = self.window_s / window.length
        self._tokenizer = context.tokenizer
        self._most_before = window.positions // 2 - 1
        self._many = settings.get("is_multilingual", (context.vocab_size or 0) >= MULTILINGUAL_VOCABULARY)
        self._end = self._found(end_of_text(settings), "an `eos_token_id`")
        self._start, self._no_times = self._needed("<|startoftranscript|>"), self._needed("<|notimestamps|>")
        self._before = self._needed("<|startofprev|>")
        self._silence = self._find("<|nospeech|>", "<|nocaptions|>")
        if self._many:
            self._tasks = {False: self._needed("<|transcribe|>"), True: self._needed("<|translate|>")}

    def _find(self, *names: str) -> int | None:
        """The id of the first name that is a token."""
        for name in names:
            ids: list[int] = self._tokenizer.encode(name, add_special_tokens=False)
            if len(ids) == 1:
                return ids[0]
        return None

    def _needed(self, name: str) -> int:
        return self._found(self._find(name), f"a token {name}")

    def _found(self, token: int | None, what: str) -> int:
        if token is None:
            raise CheckpointError(f"A model that writes down speech needs {what}; this one has none.")
        return token

    @cached_property
    def languages(self) -> Mapping[str, str]:
        """Languages by code: those with a token, or only English."""
        return {code: name for code, (name, _) in self._language_ids.items()} if self._many else {"en": "English"}

    @cached_property
    def _language_ids(self) -> Mapping[str, tuple[str, int]]:
        """Name and id by code, of languages with a token."""
        from transformers.models.whisper.tokenization_whisper import LANGUAGES

        found = {code: (name.title(), self._find(f"<|{code}|>")) for code, name in LANGUAGES.items() if self._many}
        return {code: (name, token) for code, (name, token) in found.items() if token is not None}

    def prompt(self, task: SpeechTask) -> Sequence[int]:
        """Raises BadRequest for a task that the model does not support."""
        ids = [*self._previous(task.previous), self._start]
        if self._many:
            ids += [self._language(task.language), self._tasks[task.translate]]
        if task.translate and not self._many:
            raise BadRequest("This model knows English alone; it cannot translate.", "model")
        if task.translate and task.to_language not in (None, "en"):
            raise BadRequest("This model translates into English only: `to_language` must be en.", "to_language")
        return ids if task.timestamps else [*ids, self._no_times]

    def _language(self, code: str | None) -> int:
        if code is None or code not in self._language_ids:
            raise BadRequest(f"`language` must be one of {', '.join(self._language_ids)}.", "language")
        return self._language_ids[code][1]

    def _previous(self, text: str) -> list[int]:
        """The text before the start token; of a long text its end."""
        if not text.strip():
            return []
        ids: list[int] = self._tokenizer.encode(f" {text.strip()}", add_special_tokens=False)
        if any(token >= self._end for token in ids):
            raise BadRequest("`prompt` must be text; it has the name of a token with a meaning of its own.", "prompt")
        return [self._before, *ids[-self._most_before :]]

    def language_detection(self) -> LanguageDetection | None:
        """One step after the start token gives the language and the probability of no speech."""
        if not self._many and self._silence is None:
            return None
        languages = {token: code for code, (_, token) in self._language_ids.items()}
        return LanguageDetection(prompt_ids=[self._start], languages=languages, silence_id=self._silence)

    def params(self, task: SpeechTask) -> Mapping[str, Any]:
        """Sampling parameters: timestamps by the rules, or none."""
        return {"extra": {"return_timestamps": task.timestamps}}

    def segments(self, token_ids: Sequence[int], task: SpeechTask) -> Sequence[Segment]:
        """Splits tokens at timestamps: each ends the text before it or starts the text after it."""
        found: list[Segment] = []
        begin, start_s = 0, None
        text: list[int] = []
        for i, token in enumerate(token_ids):
            if token < self._end:
                text.append(token)
            elif token > self._no_times and text:
                end_s = self._seconds(token)
                found.append(Segment(begin=begin, end=i + 1, text_ids=tuple(text), start_s=start_s, end_s=end_s))
                begin, start_s, text = i + 1, None, []
            elif token > self._no_times:
                start_s = self._seconds(token)
        if text:
            end = len(token_ids)
            found.append(Segment(begin=begin, end=end, text_ids=tuple(text), start_s=start_s))
        return found

    def _seconds(self, token: int) -> float:
        return round((token - self._no_times - 1) * self._step_s, 6)
