"""Prepares and runs `/v1/audio/…`: a recording in, its text out, in OpenAI's shapes.

A recording longer than the model's window is split into windows, with one engine request each, all at the same time.
`quire.text.speech.transcription` makes the prompts of a model.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from quire.errors import BadRequest
from quire.params.sampling import SamplingParams
from quire.records import SpeechTask
from quire.server.jobs.generation import GenerationJob
from quire.server.schemas.sampling import SamplingFields
from quire.server.schemas.speech import TIMED, SpeechRequest
from quire.server.service.models import ServedModel
from quire.server.service.prompts import check_context_length, check_token_ids
from quire.server.service.request_fields import RequestFields, sampling_params
from quire.server.service.service import ResponseIds, Service
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.speech.subtitles import srt, vtt
from quire.text.speech.transcript import Transcription, TranscriptSegment
from quire.text.speech.transcription import MODALITY, TranscriptionModel, TranscriptionPrompt, Window
from quire.types import Request
from quire.types.request_validation import check_task

FILE = "file"
UNKNOWN = "unknown"
"""The language in the answer if the request names none and the model does not detect it."""

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stream",
    "vllm_xargs",
)
"""Fields with the same meaning as in completions."""


@dataclass(frozen=True, kw_only=True)
class TranscriptionCall:
    """A prepared call of an endpoint. task: its language is None until the model detects it."""

    service: Service
    served: ServedModel
    speech: TranscriptionModel
    media: MultimodalProcessor
    fields: SpeechRequest
    ids: ResponseIds
    num_bytes: int
    windows: Sequence[Window]
    task: SpeechTask
    params: SamplingParams

    @property
    def name(self) -> str:
        """The name of the task in the API."""
        return "translate" if self.task.translate else "transcribe"

    @property
    def duration_s(self) -> float:
        """The length of the recording."""
        return self.windows[-1].end_s


async def prepare(
    service: Service,
    served: ServedModel,
    fields: SpeechRequest,
    ids: ResponseIds,
    data: bytes,
    translate: bool,
) -> TranscriptionCall:
    """Check the fields and decode the recording; nothing runs yet. data: the file. Raises `BadRequest`."""
    check_task("translate" if translate else "transcribe", served.info)
    speech, media = served.speech, served.media
    assert speech is not None, "models that support the task have a TranscriptionModel"
    assert media is not None, "models that support the task accept audio"
    check_fields(fields, translate)
    task = SpeechTask(
        language=speech.resolve_language(fields.language),
        translate=translate,
        to_language=speech.language_code(fields.to_language, "to_language"),
        timestamps=fields.response_format in TIMED,
        previous=fields.prompt,
    )
    params = _params(service, served, fields)
    served.check_media_bytes(len(data), FILE)
    fetched = await media.fetch({MODALITY: [data]}, FILE)
    windows = await media.loader.run(lambda: speech.windows(fetched[MODALITY][0], FILE), fetched)
    return TranscriptionCall(
        service=service,
        served=served,
        speech=speech,
        media=media,
        fields=fields,
        ids=ids,
        num_bytes=len(data),
        windows=windows,
        task=task,
        params=params,
    )


def check_fields(fields: SpeechRequest, translate: bool) -> None:
    """Raise `BadRequest` for fields that exclude or need each other."""
    timed, granularities = fields.response_format in TIMED, fields.timestamp_granularities
    if granularities and fields.response_format != "verbose_json":
        raise BadRequest(
            "`timestamp_granularities` needs `response_format` to be verbose_json.", "timestamp_granularities"
        )
    for granularity in granularities or ():
        if granularity != "segment":
            raise BadRequest(
                f"`timestamp_granularities` can only be segment; got {granularity!r:.40}.", "timestamp_granularities"
            )
    if fields.stream and timed:
        raise BadRequest(
            f"`stream` is available with `response_format` json and text, not {fields.response_format}.", "stream"
        )
    for name in ("stream_include_usage", "stream_continuous_usage_stats"):
        if getattr(fields, name) and not fields.stream:
            raise BadRequest(f"`{name}` is only allowed when `stream` is true.", name)
    if fields.to_language is not None and not translate:
        raise BadRequest("`to_language` is a field of /v1/audio/translations only.", "to_language")


def parse_plugin_fields(fields: dict[str, Any], request_fields: RequestFields) -> dict[str, Any]:
    """The fields of a form, with the values of plugin fields that are not strings parsed as JSON."""
    found = dict(fields)
    for name in fields.keys() & request_fields.extra_types.keys():
        if request_fields.extra_types[name] is not str and isinstance(fields[name], str):
            try:
                found[name] = msgspec.json.decode(fields[name])
            except (msgspec.DecodeError, RecursionError):
                continue  # refused later, when types are checked
    return found


def _params(service: Service, served: ServedModel, fields: SpeechRequest) -> SamplingParams:
    given = {name: getattr(fields, name) for name in SAMPLING_FIELDS}
    unknown = {k: v for k, v in (fields.model_extra or {}).items() if k not in SamplingFields.model_fields}
    sampling = SamplingFields(**given, **unknown)
    return sampling_params(
        sampling,
        service.request_fields,
        served.info.sampling_defaults,
        service.config,
        max_tokens=fields.max_completion_tokens,
        logprobs=0 if fields.response_format == "verbose_json" else None,
        prompt_logprobs=None,
    )


async def resolve_task(call: TranscriptionCall) -> SpeechTask:
    """The task with its language; without one in the request, the model detects it in the first window."""
    if call.task.language is not None:
        return call.task
    ask = await call.media.loader.run(lambda: call.speech.language_prompt(call.windows[0]))
    if ask is None:
        return call.task
    (found,) = await _make_job(call, [ask], "language").results()
    return replace(call.task, language=call.speech.detected_language(found))


async def make_windows_job(call: TranscriptionCall, task: SpeechTask) -> GenerationJob:
    """A job with one request per window and, for verbose_json, one per window for its probability of silence."""
    speech, run = call.speech, call.media.loader.run
    prompt_makers: list[Callable[[], TranscriptionPrompt | None]] = [
        partial(speech.transcription_prompt, window, task, call.params) for window in call.windows
    ]
    if call.fields.response_format == "verbose_json":
        prompt_makers += [partial(speech.no_speech_prompt, window) for window in call.windows]
    first, *others = [made for made in await asyncio.gather(*map(run, prompt_makers)) if made is not None]
    used = first.prompt.media_use._replace(num_bytes=call.num_bytes)  # those of the whole file
    first = replace(first, prompt=replace(first.prompt, media_use=used))
    return _make_job(call, [first, *others], call.name)


def _make_job(call: TranscriptionCall, prompts: Sequence[TranscriptionPrompt], prefix: str) -> GenerationJob:
    served, requests = call.served, []
    for number, prompt in enumerate(prompts):
        check_token_ids(prompt.params, served.info.vocab_size)
        check_context_length(len(prompt.prompt.token_ids), prompt.params.max_tokens, served.info.max_model_len)
        requests.append(
            Request(
                id=call.ids.engine_id(f"{prefix}-", number),
                prompt=prompt.prompt,
                params=prompt.params,
                adapters=served.adapters,
                client=call.ids.client,
                endpoint=call.ids.endpoint,
            )
        )
    return call.service.generation_job(served, requests)


async def run(call: TranscriptionCall) -> Response:
    """Run to the end and return the whole answer."""
    task = await resolve_task(call)
    job = await make_windows_job(call, task)
    outputs, count = await job.results(), len(call.windows)
    speech, windows = call.speech, call.windows
    return _response(
        call,
        await call.media.loader.run(lambda: speech.transcription(windows, task, outputs[:count], outputs[count:])),
    )


def _response(call: TranscriptionCall, transcription: Transcription) -> Response:
    match call.fields.response_format:
        case "text":
            return _plain(f"{transcription.text}\n")
        case "srt":
            return _plain(srt(transcription.segments))
        case "vtt":
            return _plain(vtt(transcription.segments))
    value: dict[str, Any] = {"text": transcription.text, "usage": duration_usage(call)}
    if call.fields.response_format == "verbose_json":
        value = {
            "task": call.name,
            "language": transcription.language or UNKNOWN,
            "duration": transcription.duration_s,
            "text": transcription.text,
            "segments": [_segment(call, number, segment) for number, segment in enumerate(transcription.segments)],
            "usage": value["usage"],
        }
    return Response(msgspec.json.encode(value), media_type="application/json")


def _plain(text: str) -> Response:
    return Response(text, media_type="text/plain")


def _segment(call: TranscriptionCall, number: int, segment: TranscriptSegment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": round(segment.window_s * 100),
        "start": segment.start_s,
        "end": segment.end_s,
        "text": segment.text,
        "tokens": segment.token_ids,
        "temperature": call.fields.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


def duration_usage(call: TranscriptionCall) -> dict[str, Any]:
    """What the recording counts as."""
    return {"type": "duration", "seconds": math.ceil(call.duration_s)}
