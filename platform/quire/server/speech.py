"""`/v1/audio/…`: a recording in, what is said in it out, in OpenAI's shapes.

A recording longer than the model hears at once is heard in windows, a request for each, all at the same time.
It knows the wire shapes; how a model is asked is `quire.text.speech`'s affair.
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
from quire.pooling import check_task
from quire.records import SpeechTask
from quire.sampling import SamplingParams
from quire.server.job import Job
from quire.server.models import Served
from quire.server.params import FieldRules, sampling_params
from quire.server.prompts import check_room, check_token_ids
from quire.server.schema_sampling import SamplingFields
from quire.server.schema_speech import TIMED, SpeechRequest
from quire.server.service import Naming, Service
from quire.text.media import MediaInputs
from quire.text.speech import MODALITY, Ask, Speech, Window
from quire.text.subtitles import srt, vtt
from quire.text.transcript import SpokenSegment, Transcription
from quire.types import Request

FILE = "file"
UNKNOWN = "unknown"
"""The language of a recording of which nobody said it, and the model cannot tell."""

PASSED = (
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
"""Fields that mean what they mean for completions."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an endpoint, ready to run. task: without the language, if that is yet to be found."""

    service: Service
    served: Served
    speech: Speech
    media: MediaInputs
    fields: SpeechRequest
    naming: Naming
    windows: Sequence[Window]
    task: SpeechTask
    params: SamplingParams

    @property
    def name(self) -> str:
        """Of the task."""
        return "translate" if self.task.translate else "transcribe"

    @property
    def duration_s(self) -> float:
        """How long the recording is."""
        return self.windows[-1].end_s


async def prepare(
    service: Service, served: Served, fields: SpeechRequest, naming: Naming, data: bytes, translate: bool
) -> Call:
    """Check and decode; nothing runs yet."""
    check_task("translate" if translate else "transcribe", served.info)
    speech, media = served.speech, served.media
    assert speech is not None, "what says that a model transcribes says how"
    assert media is not None, "models that transcribe hear"
    check_fields(fields, translate)
    task = SpeechTask(
        language=speech.spoken(fields.language),
        translate=translate,
        to_language=speech.language(fields.to_language, "to_language"),
        timestamps=fields.response_format in TIMED,
        previous=fields.prompt,
    )
    params = _params(service, served, fields)
    fetched = await media.fetched({MODALITY: [data]}, FILE)
    windows = await media.intake.run(lambda: speech.windows(fetched[MODALITY][0], FILE), fetched)
    return Call(
        service=service,
        served=served,
        speech=speech,
        media=media,
        fields=fields,
        naming=naming,
        windows=windows,
        task=task,
        params=params,
    )


def check_fields(fields: SpeechRequest, translate: bool) -> None:
    """Rules between fields; raises `BadRequest`."""
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


def typed(fields: dict[str, Any], rules: FieldRules) -> dict[str, Any]:
    """Fields of a form, those of plugins in their types where a text can be one."""
    found = dict(fields)
    for name in fields.keys() & rules.extra_types.keys():
        if rules.extra_types[name] is not str and isinstance(fields[name], str):
            try:
                found[name] = msgspec.json.decode(fields[name])
            except (msgspec.DecodeError, RecursionError):
                continue  # it is refused with the others of a wrong type
    return found


def _params(service: Service, served: Served, fields: SpeechRequest) -> SamplingParams:
    given = {name: getattr(fields, name) for name in PASSED}
    unknown = {k: v for k, v in (fields.model_extra or {}).items() if k not in SamplingFields.model_fields}
    sampling = SamplingFields(**given, **unknown)
    return sampling_params(
        sampling,
        service.rules,
        served.info.sampling_defaults,
        service.config,
        max_tokens=fields.max_completion_tokens,
        logprobs=0 if fields.response_format == "verbose_json" else None,
        prompt_logprobs=None,
    )


async def task_of(call: Call) -> SpeechTask:
    """The call's task with its language, for which the model is asked by the first window if nobody said it."""
    if call.task.language is not None:
        return call.task
    ask = await call.media.intake.run(lambda: call.speech.language_ask(call.windows[0]))
    if ask is None:
        return call.task
    (found,) = await _job(call, [ask], "language").results()
    return replace(call.task, language=call.speech.found_language(found))


async def windows_job(call: Call, task: SpeechTask) -> Job:
    """The generations of all windows and, if the answer says it, as many that tell how likely nobody speaks."""
    speech, run = call.speech, call.media.intake.run
    works: list[Callable[[], Ask | None]] = [partial(speech.ask, one, task, call.params) for one in call.windows]
    if call.fields.response_format == "verbose_json":
        works += [partial(speech.silence_ask, one) for one in call.windows]
    asks = await asyncio.gather(*map(run, works))
    return _job(call, [ask for ask in asks if ask is not None], call.name)


def _job(call: Call, asks: Sequence[Ask], prefix: str) -> Job:
    served, requests = call.served, []
    for number, ask in enumerate(asks):
        check_token_ids(ask.params, served.info.vocab_size)
        check_room(len(ask.prompt.token_ids), ask.params.max_tokens, served.info.max_model_len)
        requests.append(
            Request(
                id=call.naming.engine_id(f"{prefix}-", number),
                prompt=ask.prompt,
                params=ask.params,
                adapters=served.adapters,
                client=call.naming.client,
            )
        )
    return call.service.job(served, requests)


async def answer(call: Call) -> Response:
    """Run to the end; the whole answer."""
    task = await task_of(call)
    job = await windows_job(call, task)
    outputs, count = await job.results(), len(call.windows)
    speech, windows = call.speech, call.windows
    return _shaped(
        call,
        await call.media.intake.run(lambda: speech.transcription(windows, task, outputs[:count], outputs[count:])),
    )


def _shaped(call: Call, said: Transcription) -> Response:
    match call.fields.response_format:
        case "text":
            return _plain(f"{said.text}\n")
        case "srt":
            return _plain(srt(said.segments))
        case "vtt":
            return _plain(vtt(said.segments))
    value: dict[str, Any] = {"text": said.text, "usage": duration_usage(call)}
    if call.fields.response_format == "verbose_json":
        value = {
            "task": call.name,
            "language": said.language or UNKNOWN,
            "duration": said.duration_s,
            "text": said.text,
            "segments": [_segment(call, number, one) for number, one in enumerate(said.segments)],
            "usage": value["usage"],
        }
    return Response(msgspec.json.encode(value), media_type="application/json")


def _plain(text: str) -> Response:
    return Response(text, media_type="text/plain")


def _segment(call: Call, number: int, one: SpokenSegment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": round(one.window_s * 100),
        "start": one.start_s,
        "end": one.end_s,
        "text": one.text,
        "tokens": one.token_ids,
        "temperature": call.fields.temperature,
        "avg_logprob": one.avg_logprob,
        "compression_ratio": one.compression_ratio,
        "no_speech_prob": one.no_speech_prob,
    }


def duration_usage(call: Call) -> dict[str, Any]:
    """What the recording counts as."""
    return {"type": "duration", "seconds": math.ceil(call.duration_s)}
