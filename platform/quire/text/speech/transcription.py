"""Turns recordings into prompts and outputs into transcriptions, with the transcriber plugin of a model.

Audio ─▶ windows ─▶ a TranscriptionPrompt for each, which the caller runs ─▶ outputs ─▶ Transcription
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from quire.errors import BadRequest, PluginError, PluginFailed, QuireError
from quire.hooks.call_stats import call_plugin
from quire.media.loader import with_item_number
from quire.params.sampling import SamplingParams
from quire.records import LanguageDetection, Registry, Segment, SpeechTask, Transcriber, TranscriberImpl
from quire.text.inputs.context import model_context
from quire.text.inputs.inputs import InputLimits, to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.inputs.numbered_markers import FIELD as MEDIA
from quire.text.outputs.outputs import CompletionOutput, RequestOutput
from quire.text.speech.transcript import Transcription, TranscriptSegment, join_texts
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import MediaUse, ModelInfo, Prompt

if TYPE_CHECKING:
    from quire.media.audio import Audio

T = TypeVar("T")

HOOK = "quire_transcribers"
MODALITY = "audio"
_DEFAULTS = SamplingParams(max_tokens=None)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window of a recording: its begin and end in seconds, and its audio at the sample rate of the model."""

    begin_s: float
    end_s: float
    audio: Audio


@dataclass(frozen=True, kw_only=True)
class TranscriptionPrompt:
    """A prompt with its sampling parameters, for one request to the model."""

    prompt: Prompt
    params: SamplingParams


class TranscriptionModel:
    """The text side of transcription with one model. Thread-safe.

    Raises PluginError if the transcriber cannot be built.
    """

    def __init__(
        self, registry: Registry, record: Transcriber, info: ModelInfo, tokenizer: Tokenizer, media: MultimodalProcessor
    ) -> None:
        self._registry, self._info, self._tokenizer, self._media = registry, info, tokenizer, media
        self._plugin = registry.plugin_of(HOOK, record.name)
        self._ends = frozenset((*info.eos_ids, *tokenizer.eos_ids))
        context = model_context(registry, self._plugin, info, tokenizer)
        try:
            self._transcriber: TranscriberImpl = call_plugin(registry, self._plugin, record.build, context)
        except PluginFailed as error:
            raise PluginError(f"The transcriber {record.name!r} cannot be built. {error.message}") from error

    @classmethod
    def from_model_info(
        cls, registry: Registry, info: ModelInfo, tokenizer: Tokenizer, media: MultimodalProcessor | None
    ) -> TranscriptionModel | None:
        """The transcription model of `info`; None if the model cannot transcribe."""
        if media is None or "transcribe" not in info.tasks:
            return None
        records = (record for record in registry.all(HOOK) if record.architecture == info.architecture)
        return cls(registry, next(records), info, tokenizer, media)

    # --- recordings to prompts ---------------------------------------------------------------------

    def resolve_language(self, given: str | None) -> str | None:
        """The code of the spoken language. Without one, the language of a model that has only one; else None."""
        if given is None and len(self._transcriber.languages) == 1:
            return next(iter(self._transcriber.languages))
        return self.language_code(given, "language")

    def language_code(self, given: str | None, param: str) -> str | None:
        """The code of a language, which is given as a code or English name. Raises `BadRequest` for an unknown one."""
        if given is None:
            return None
        known, lowered = self._transcriber.languages, given.strip().lower()
        for code, name in known.items():
            if lowered in (code.lower(), name.lower()):
                return code
        allowed = (
            f"it must be one of {', '.join(known)}" if known else "it cannot be chosen for this model; leave it out"
        )
        raise BadRequest(f"`{param}` {given!r:.40} is not known: {allowed}.", param)

    def windows(self, item: Any, param: str) -> list[Window]:
        """Decode a fetched recording and split it into windows for the model. Blocks. Raises the errors of decoding."""
        from quire.media.audio import Audio  # imports numpy, which a server for text does not need
        from quire.media.windows import split_windows

        try:
            audio: Audio = self._media.loader.decode(MODALITY, item)
        except QuireError as error:
            raise with_item_number(error, MODALITY, 0, 1, param) from error
        rate = self._transcriber.sampling_rate
        samples = audio.resample(rate)
        return [
            Window(begin_s=begin / rate, end_s=end / rate, audio=Audio(samples=samples[begin:end], rate=rate))
            for begin, end in split_windows(samples, rate, self._transcriber.window_s)
        ]

    def transcription_prompt(self, window: Window, task: SpeechTask, params: SamplingParams) -> TranscriptionPrompt:
        """The prompt that transcribes a window. Blocks.

        params: take precedence over the parameters that the task needs. Raises `BadRequest` for a task that the model
        does not have, and the errors of `MultimodalProcessor.process`.
        """
        ids, needs = self._call(self._transcriber.prompt, task), self._call(self._transcriber.params, task)
        prompt = self._prompt(ids, window)
        budget = max(1, self._info.max_model_len - len(prompt.token_ids))
        return TranscriptionPrompt(prompt=prompt, params=self._call(_with_needs, params, needs, budget))

    def language_prompt(self, window: Window) -> TranscriptionPrompt | None:
        """The prompt that detects the spoken language; None if the model cannot detect it. Blocks."""
        detection = self._detection()
        if detection is None or not detection.languages:
            return None
        return self._step(detection, window, sorted(detection.languages))

    def no_speech_prompt(self, window: Window) -> TranscriptionPrompt | None:
        """The prompt that estimates the probability of no speech; None if the model cannot estimate it. Blocks."""
        detection = self._detection()
        if detection is None or detection.silence_id is None:
            return None
        return self._step(detection, window, [detection.silence_id])

    def _detection(self) -> LanguageDetection | None:
        found: LanguageDetection | None = self._call(self._transcriber.language_detection)
        return found

    def _step(self, detection: LanguageDetection, window: Window, allowed: Sequence[int]) -> TranscriptionPrompt:
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=0, allowed_token_ids=allowed, ignore_eos=True)
        prompt = replace(self._prompt(detection.prompt_ids, window), media_use=MediaUse())  # counted when transcribed
        return TranscriptionPrompt(prompt=prompt, params=params)

    def _prompt(self, ids: Sequence[int], window: Window) -> Prompt:
        limits = InputLimits(max_model_len=self._info.max_model_len, vocab_size=self._info.vocab_size, param="prompt")
        value = {"prompt_token_ids": list(ids), MEDIA: {MODALITY: window.audio}}
        return to_prompt(value, self._tokenizer, limits, multimodal=self._media)

    def _call(self, function: Callable[..., T], *args: Any) -> T:
        given: T = call_plugin(self._registry, self._plugin, function, *args)
        return given

    # --- outputs to transcriptions -----------------------------------------------------------------

    def detected_language(self, output: RequestOutput) -> str | None:
        """The language code in the output of `language_prompt`."""
        detection = self._detection()
        return None if detection is None else detection.languages.get(output.outputs[0].token_ids[0])

    def transcription(
        self,
        windows: Sequence[Window],
        task: SpeechTask,
        outputs: Sequence[RequestOutput],
        silences: Sequence[RequestOutput] = (),
    ) -> Transcription:
        """Merge the outputs of `transcription_prompt` for all windows. Blocks.

        silences: the outputs of `no_speech_prompt` for all windows, or ().
        """
        answers = [output.outputs[0] for output in outputs]
        segments: list[TranscriptSegment] = []
        texts = [answer.text for answer in answers]
        if task.timestamps:
            for number, (window, answer) in enumerate(zip(windows, answers, strict=True)):
                found = self._segments(window, answer, task)
                silence = _probability(silences[number].outputs[0]) if silences else None
                segments += [replace(one, no_speech_prob=silence) for one in found]
                texts[number] = "".join(one.text for one in found)
        return Transcription(
            text=join_texts(texts),
            duration_s=windows[-1].end_s,
            language=self._language_name(task),
            segments=tuple(one for one in segments if one.text.strip()),
        )

    def _segments(self, window: Window, answer: CompletionOutput, task: SpeechTask) -> list[TranscriptSegment]:
        ids = answer.token_ids
        if ids and ids[-1] in self._ends:
            ids = ids[:-1]
        given: Sequence[Segment] = self._call(self._transcriber.segments, ids, task)
        return [
            TranscriptSegment(
                start_s=start_s,
                end_s=end_s,
                window_s=window.begin_s,
                text=self._tokenizer.decode(one.text_ids),
                token_ids=tuple(ids[one.begin : one.end]),
                avg_logprob=_mean_logprob(answer, one.begin, one.end),
            )
            for one, (start_s, end_s) in zip(given, _times(given, window), strict=True)
        ]

    def _language_name(self, task: SpeechTask) -> str | None:
        names = self._transcriber.languages
        code = (task.to_language or "en") if task.translate else task.language
        return None if code is None else names.get(code, code).lower()


def _times(segments: Sequence[Segment], window: Window) -> Iterator[tuple[float, float]]:
    """(start, end) of each segment in seconds of the recording, ascending and within the window.

    A missing time is taken from the neighboring segment.
    """
    length = window.end_s - window.begin_s
    last_end = 0.0
    for number, one in enumerate(segments):
        start = last_end if one.start_s is None else min(max(last_end, one.start_s), length)
        next_start = segments[number + 1].start_s if number + 1 < len(segments) else None
        end = next(time for time in (one.end_s, next_start, length) if time is not None)
        last_end = min(max(start, end), length)
        yield window.begin_s + start, window.begin_s + last_end


def _with_needs(params: SamplingParams, needs: Mapping[str, Any], budget: int) -> SamplingParams:
    """`params` with the task's `needs` in fields that have their defaults, and at most `budget` tokens."""
    changes = {name: value for name, value in needs.items() if getattr(params, name) == getattr(_DEFAULTS, name)}
    changes["extra"] = {**needs.get("extra", {}), **params.extra}
    if changes.get("max_tokens") is not None:
        changes["max_tokens"] = min(changes["max_tokens"], budget)
    return replace(params, **changes)


def _mean_logprob(answer: CompletionOutput, begin: int, end: int) -> float | None:
    if answer.logprobs is None or end <= begin:
        return None
    ids = answer.token_ids[begin:end]
    return math.fsum(entry[token].logprob for token, entry in zip(ids, answer.logprobs[begin:end], strict=True)) / len(
        ids
    )


def _probability(answer: CompletionOutput) -> float | None:
    """Probability of the single token that was allowed."""
    return None if not answer.logprobs else math.exp(answer.logprobs[0][answer.token_ids[0]].logprob)
