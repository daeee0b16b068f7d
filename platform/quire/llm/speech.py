"""`LLM.transcribe`: transcribes and translates recordings, with all windows of all recordings in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import BadRequest
from quire.llm.arguments import as_adapters
from quire.llm.requests import Adapters, OfflineRequests
from quire.media.loader import MediaLoader
from quire.params.sampling import SamplingParams
from quire.records import SpeechTask
from quire.text.speech.transcript import Transcription
from quire.text.speech.transcription import MODALITY, TranscriptionModel, TranscriptionPrompt, Window
from quire.types import LoRARequest, ModelInfo
from quire.types.request_validation import check_task

PARAM = "audio"


@dataclass(frozen=True)
class _Recording:
    windows: list[Window]
    task: SpeechTask
    adapters: tuple[LoRARequest, ...]


class OfflineTranscription:
    """Transcribes and translates speech with one model in this process.

    speech: None for a model that cannot transcribe. loader: fetches recordings.
    """

    def __init__(
        self, requests: OfflineRequests, info: ModelInfo, speech: TranscriptionModel | None, loader: MediaLoader
    ) -> None:
        self._requests, self._info, self._speech, self._media_loader = requests, info, speech, loader

    def transcribe(
        self,
        audio: Any,
        task: SpeechTask,
        sampling_params: SamplingParams | None,
        *,
        lora_request: Adapters = None,
        use_tqdm: bool = True,
    ) -> list[Transcription]:
        """Transcribe one recording or a list of them. task: its language may be a code or an English name."""
        check_task("translate" if task.translate else "transcribe", self._info)
        assert self._speech is not None, "a model with the task transcribe has a transcriber"
        params = sampling_params
        if params is None:
            params = SamplingParams(temperature=0, max_tokens=None, logprobs=0 if task.timestamps else None)
        if params.n != 1 or params.num_seqs != 1:
            raise BadRequest("`n` and `best_of` must be 1: speech is transcribed once.", "sampling_params")
        task = replace(task, language=self._speech.resolve_language(task.language))
        items = audio if isinstance(audio, list) else [audio]
        adapters = as_adapters(lora_request, len(items))
        recordings = [
            _Recording(self._windows(self._speech, item), task, tuple(uses))
            for item, uses in zip(items, adapters, strict=True)
        ]
        if task.language is None:
            recordings = self._with_languages(self._speech, recordings, use_tqdm)
        return self._transcriptions(self._speech, recordings, params, use_tqdm)

    def _windows(self, speech: TranscriptionModel, item: Any) -> list[Window]:
        (fetched,) = self._media_loader.fetch_sync({MODALITY: [item]}, PARAM)[MODALITY]
        return speech.windows(fetched, PARAM)

    def _with_languages(
        self, speech: TranscriptionModel, recordings: Sequence[_Recording], use_tqdm: bool
    ) -> list[_Recording]:
        """Set the language of each recording to the one that the model detects in its first window."""
        prompts = [(one, ask) for one in recordings if (ask := speech.language_prompt(one.windows[0])) is not None]
        if len(prompts) < len(recordings):
            return list(recordings)
        outputs = self._run([(prompt, one.adapters) for one, prompt in prompts], use_tqdm)
        return [
            replace(one, task=replace(one.task, language=speech.detected_language(output)))
            for one, output in zip(recordings, outputs, strict=True)
        ]

    def _transcriptions(
        self, speech: TranscriptionModel, recordings: Sequence[_Recording], params: SamplingParams, use_tqdm: bool
    ) -> list[Transcription]:
        calls = [
            (speech.transcription_prompt(window, one.task, params), one.adapters)
            for one in recordings
            for window in one.windows
        ]
        outputs = iter(self._run(calls, use_tqdm))
        return [speech.transcription(one.windows, one.task, [next(outputs) for _ in one.windows]) for one in recordings]

    def _run(self, calls: Sequence[tuple[TranscriptionPrompt, tuple[LoRARequest, ...]]], use_tqdm: bool) -> list[Any]:
        prompts = [call.prompt for call, _ in calls]
        ids = self._requests.submit(prompts, [call.params for call, _ in calls], [adapters for _, adapters in calls])
        return self._requests.finish(ids, use_tqdm)
