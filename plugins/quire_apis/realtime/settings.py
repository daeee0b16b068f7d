"""The settings of a session, and the objects `session` with which clients change them.

OpenAI's API has two shapes: `audio.input…` with `type: transcription`, and the older one of
`transcription_session.update`. Only fields that are present change a setting; null turns a setting off. What the server
cannot do is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from quire_apis.realtime.client_events import NULL, EventFault, is_null
from quire_apis.realtime.pcm import ALAW, G711_RATE, MAX_RATE, MIN_RATE, PCM, ULAW, AudioFormat

MAX_NAME = 512
MAX_PROMPT = 20_000
"""Characters. A model keeps far fewer tokens of it."""

OLD_FORMATS = {
    "pcm16": AudioFormat(),
    "g711_ulaw": AudioFormat(ULAW, G711_RATE),
    "g711_alaw": AudioFormat(ALAW, G711_RATE),
}
"""Names of the older shape."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How the audio of a session is coded and written down. transcribes: False: turns are committed and no more."""

    model: str | None = None
    language: str | None = None
    prompt: str = ""
    format: AudioFormat = field(default_factory=AudioFormat)
    transcribes: bool = True

    def fields(self) -> dict[str, Any]:
        """The fields of `/v1/audio/transcriptions`."""
        given = {"model": self.model, "language": self.language, "prompt": self.prompt}
        return {name: value for name, value in given.items() if value}


class _Transcription(msgspec.Struct, forbid_unknown_fields=True):
    model: str | UnsetType | None = UNSET
    language: str | UnsetType | None = UNSET
    prompt: str | UnsetType | None = UNSET
    delay: str | None = None  # of models that write before a turn ends: without effect
    keywords: list[str] | None = None
    languages: list[str] | None = None


class _Format(msgspec.Struct, forbid_unknown_fields=True):
    type: str = PCM
    rate: int | None = None


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    format: _Format | UnsetType | None = UNSET
    transcription: _Transcription | UnsetType | None = UNSET
    turn_detection: Raw = NULL
    noise_reduction: Raw = NULL


class _Audio(msgspec.Struct, forbid_unknown_fields=True):
    input: _Input | None = None


class _SessionKind(msgspec.Struct):
    type: str | None = None


class _Session(msgspec.Struct, forbid_unknown_fields=True):
    """The shape of `session.update`. Clients may send back the fields that the server sets."""

    type: str | None = None
    audio: _Audio | None = None
    include: list[str] | None = None
    id: Raw = NULL
    object: Raw = NULL
    expires_at: Raw = NULL


class _OldSession(msgspec.Struct, forbid_unknown_fields=True):
    """The shape of `transcription_session.update`."""

    input_audio_format: str | None = None
    input_audio_transcription: _Transcription | UnsetType | None = UNSET
    turn_detection: Raw = NULL
    input_audio_noise_reduction: Raw = NULL
    include: list[str] | None = None
    modalities: Raw = NULL
    id: Raw = NULL
    object: Raw = NULL
    expires_at: Raw = NULL


def updated(settings: SessionSettings, session: Raw) -> SessionSettings:
    """The settings after `session.update`. Raises `EventFault` for what is wrong or not available."""
    if _decoded(session, _SessionKind).type not in (None, "transcription"):
        raise EventFault(
            "unsupported", "This server transcribes: `session.type` must be transcription.", "session.type"
        )
    given = _decoded(session, _Session)
    part = given.audio.input if given.audio is not None else None
    part = part or _Input()
    _refuse(part.turn_detection, part.noise_reduction, given.include, "session.audio.input.")
    if isinstance(part.format, _Format):
        settings = replace(settings, format=_format(part.format))
    return _with_transcription(settings, part.transcription, "session.audio.input.transcription")


def updated_old(settings: SessionSettings, session: Raw) -> SessionSettings:
    """The settings after `transcription_session.update`. Raises `EventFault` for what is wrong or not available."""
    given = _decoded(session, _OldSession)
    _refuse(given.turn_detection, given.input_audio_noise_reduction, given.include, "session.")
    if given.input_audio_format is not None:
        if given.input_audio_format not in OLD_FORMATS:
            names = ", ".join(OLD_FORMATS)
            raise EventFault("invalid_value", f"`input_audio_format` must be one of {names}.", "input_audio_format")
        settings = replace(settings, format=OLD_FORMATS[given.input_audio_format])
    return _with_transcription(settings, given.input_audio_transcription, "session.input_audio_transcription")


def _decoded(session: Raw, schema: type[Any]) -> Any:
    try:
        return msgspec.json.decode(session, type=schema)
    except RecursionError:
        raise EventFault("invalid_value", "`session` is nested too deeply.", "session") from None
    except msgspec.MsgspecError as error:
        raise EventFault("invalid_value", f"`session` is wrong: {error}", "session") from None


def _refuse(turn_detection: Raw, noise_reduction: Raw, include: list[str] | None, prefix: str) -> None:
    if not is_null(turn_detection):
        raise EventFault(
            "unsupported",
            "This server does not detect where speech ends: `turn_detection` must be null, and the client ends each"
            " turn with input_audio_buffer.commit.",
            f"{prefix}turn_detection",
        )
    if not is_null(noise_reduction):
        raise EventFault("unsupported", "Noise reduction is not available; leave it out.", f"{prefix}noise_reduction")
    if include:
        raise EventFault("unsupported", "`include` must be empty: no log-probabilities are sent.", "session.include")


def _format(given: _Format) -> AudioFormat:
    if given.type in (ULAW, ALAW) and given.rate in (None, G711_RATE):
        return AudioFormat(given.type, G711_RATE)
    rate = 24_000 if given.rate is None else given.rate
    if given.type != PCM or not MIN_RATE <= rate <= MAX_RATE:
        allowed = f"{PCM} with a rate from {MIN_RATE} to {MAX_RATE}, {ULAW} or {ALAW}"
        raise EventFault("invalid_value", f"`format` must be {allowed}.", "session.audio.input.format")
    return AudioFormat(PCM, rate)


def _with_transcription(
    settings: SessionSettings, given: _Transcription | UnsetType | None, param: str
) -> SessionSettings:
    if given is UNSET:
        return settings
    if given is None:
        return replace(settings, transcribes=False)
    assert isinstance(given, _Transcription)
    if given.keywords or given.languages:
        raise EventFault("unsupported", "`keywords` and `languages` are not available; leave them out.", param)
    changes = {name: _text(getattr(given, name), f"{param}.{name}") for name in ("model", "language", "prompt")}
    present: dict[str, Any] = {name: value for name, value in changes.items() if value is not UNSET}
    if present.get("prompt", "") is None:
        present["prompt"] = ""
    return replace(settings, transcribes=True, **present)


def _text(value: str | UnsetType | None, param: str) -> str | UnsetType | None:
    most = MAX_PROMPT if param.endswith(".prompt") else MAX_NAME
    if isinstance(value, str) and len(value) > most:
        raise EventFault("invalid_value", f"`{param}` may have at most {most} characters.", param)
    return value
