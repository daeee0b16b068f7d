"""The forms of `/v1/audio/…` and their responses. Form values are strings; pydantic converts them here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Json

from quire.server.schemas.adapters import AdapterChoice
from quire.server.schemas.sampling import INT64, MAX_CHOICES, Penalty, within
from quire.types.request_model import RequestModel

SpeechFormat = Literal["json", "text", "verbose_json", "srt", "vtt"]
TIMED: tuple[SpeechFormat, ...] = ("verbose_json", "srt", "vtt")
"""Formats with timestamps."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SpeechRequest(RequestModel):
    """The fields of the form; the recording is the form's `file`."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    language: str | None = None
    to_language: str | None = None
    prompt: str = ""
    response_format: SpeechFormat = "json"
    timestamp_granularities: Annotated[list[str], BeforeValidator(_listed)] | None = None
    stream: bool = False
    stream_include_usage: bool | None = None
    stream_continuous_usage_stats: bool = False
    temperature: Annotated[float, within(0, 2)] = 0.0
    top_p: Annotated[float, within(0, 1, exclusiveMinimum=0)] | None = None
    top_k: Annotated[int, within(-1, INT64)] | None = None
    min_p: Annotated[float, within(0, 1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, within(1e-6, 1e6)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    request_id: str | None = None
    adapters: Json[Annotated[list[AdapterChoice], Field(max_length=MAX_CHOICES)]] | None = None
    vllm_xargs: Json[dict[str, Any]] | None = None


class TranscriptionRequest(SpeechRequest):
    """The form of `POST /v1/audio/transcriptions`."""


class TranslationRequest(SpeechRequest):
    """The form of `POST /v1/audio/translations`. language: of the recording; to_language: of the answer."""


UNSUPPORTED_SPEECH_FIELDS: dict[str, tuple[Any, ...]] = {
    "hotwords": (),
    "keywords": (),
    "languages": (),
    "include": (),
    "chunking_strategy": ("auto",),
    "known_speaker_names": (),
    "known_speaker_references": (),
}
"""`UNSUPPORTED_FIELDS` of forms."""


class DurationUsage(BaseModel):
    """The length of the recording in seconds, rounded up."""

    type: Literal["duration"]
    seconds: int


class SpokenSegment(BaseModel):
    """A segment of the text. seek: start of its window in hundredths of a second."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float | None
    compression_ratio: float
    no_speech_prob: float | None


class SpokenText(BaseModel):
    """The answer of `/v1/audio/…`; the optional fields are those of verbose_json."""

    text: str
    usage: DurationUsage
    task: Literal["transcribe", "translate"] | None = None
    language: str | None = None
    duration: float | None = None
    segments: list[SpokenSegment] | None = None
