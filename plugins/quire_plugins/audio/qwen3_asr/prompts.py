"""Prompts of Qwen3-ASR: the text before the transcript as the system's message, the audio, and the language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.errors import BadRequest
from quire.records import Context, SpeechTask
from quire_plugins.audio.chat_transcriber import UntimedPrompts

LANGUAGES = {
    "ar": "Arabic",
    "yue": "Cantonese",
    "zh": "Chinese",
    "cs": "Czech",
    "da": "Danish",
    "nl": "Dutch",
    "en": "English",
    "fil": "Filipino",
    "fi": "Finnish",
    "fr": "French",
    "de": "German",
    "el": "Greek",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "mk": "Macedonian",
    "ms": "Malay",
    "fa": "Persian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "es": "Spanish",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "vi": "Vietnamese",
}
"""Those that the model is trained on."""

TEXT = (
    "<|im_start|>system\n{previous}<|im_end|>\n<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n"
    "<|im_start|>assistant\nlanguage {language}<asr_text>"
)
"""The model's chat, up to the beginning of the transcript."""


class QwenAsrPrompts(UntimedPrompts):
    """The prompts of one model."""

    languages: Mapping[str, str] = LANGUAGES

    def __init__(self, context: Context) -> None:
        self._tokenizer = context.tokenizer

    def prompt(self, task: SpeechTask) -> Sequence[int]:
        """Raises BadRequest without a language, and for timestamps."""
        if task.language is None:
            raise BadRequest("This model needs the language of the speech: set `language`.", "language")
        self.refuse_times(task)
        previous = task.previous.strip()
        if "<|" in previous:
            raise BadRequest("`prompt` must be text, without names of special tokens.", "prompt")
        text = TEXT.format(previous=previous, language=LANGUAGES[task.language])
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids
