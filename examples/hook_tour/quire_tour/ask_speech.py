"""Speech to text with an audio chat model: the prompt asks it in words to transcribe or to translate."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.plugin import BadRequest, Context, LanguageDetection, Option, Segment, SpeechTask, Transcriber, hookimpl

LANGUAGES = {"de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian", "zh": "Chinese"}


class WordPromptTranscriber:
    """Builds prompts with the audio and a question in a user message, in the format of Qwen2-Audio."""

    sampling_rate = 16_000
    languages: Mapping[str, str] = LANGUAGES

    def __init__(self, context: Context) -> None:
        self._tokenizer = context.tokenizer
        self._sound: str = context.options["sound"]
        self.window_s: float = context.options["window_s"]

    def prompt(self, task: SpeechTask) -> Sequence[int]:
        """A user message, and the beginning of the assistant's."""
        if task.timestamps:
            raise BadRequest("This model does not know when something was said.", "response_format")
        turn = f"<|im_start|>user\n{self._sound}\n{self._question(task)}<|im_end|>\n<|im_start|>assistant\n"
        ids: list[int] = self._tokenizer.encode(turn, add_special_tokens=False)
        return ids

    def _question(self, task: SpeechTask) -> str:
        spoken = f" It is {LANGUAGES[task.language]}." if task.language else ""
        before = f" Before it was said: {task.previous}" if task.previous else ""
        if task.translate:
            target = task.to_language or "en"
            if target not in LANGUAGES:
                raise BadRequest(f"`to_language` must be one of {', '.join(LANGUAGES)}.", "to_language")
            return f"Translate what is said to {LANGUAGES[target]}, and write nothing else.{spoken}{before}"
        return f"Write down what is said, and nothing else.{spoken}{before}"

    def language_detection(self) -> LanguageDetection | None:
        """None: the prompt does not need the language."""
        return None

    def params(self, task: SpeechTask) -> Mapping[str, Any]:
        """A limit that no speech of half a minute reaches."""
        return {"max_tokens": 448}

    def segments(self, token_ids: Sequence[int], task: SpeechTask) -> Sequence[Segment]:
        """The whole answer as one segment."""
        return [Segment(begin=0, end=len(token_ids), text_ids=tuple(token_ids))] if token_ids else []


@hookimpl
def quire_options() -> Iterable[Option]:
    """The length of a window, and the text around the audio marker."""
    yield Option("window_s", float, 30.0, "seconds of audio that the model takes at once")
    yield Option("sound", str, "Audio 1: <|audio_bos|><|AUDIO|><|audio_eos|>", "text around the audio marker")


@hookimpl
def quire_transcribers() -> Iterable[Transcriber]:
    """The transcriber of Qwen2-Audio."""
    yield Transcriber("ask-speech", "Qwen2AudioForConditionalGeneration", WordPromptTranscriber)
