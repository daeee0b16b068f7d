"""The server events of each dialect: OpenAI's Realtime API, its older shape, and vLLM's `/v1/realtime`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.plugin import AnswerUsage, QuireError
from quire_apis.realtime.client_events import EventFault
from quire_apis.realtime.settings import SessionSettings

Event = Mapping[str, Any]

NAMES = {404: "model_not_found", 413: "too_large", 503: "overloaded"}
"""Codes of errors that are no `EventFault`, by their status."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A committed piece of audio. audio: as it was sent. previous: id of the turn before. is_last: vLLM's `final`."""

    id: str
    previous: str | None
    audio: bytes
    settings: SessionSettings
    is_last: bool = True

    @property
    def seconds(self) -> float:
        """The length of the audio."""
        return self.settings.format.seconds(len(self.audio))


class Dialect(Protocol):
    """Makes the events that a client understands."""

    def updated(self, session_id: str, settings: SessionSettings) -> Iterator[Event]:
        """After the settings changed."""
        ...

    def committed(self, turn: Turn) -> Iterator[Event]:
        """After a turn was committed."""
        ...

    def cleared(self) -> Iterator[Event]:
        """After the buffer was emptied."""
        ...

    def delta(self, turn: Turn, text: str) -> Iterator[Event]:
        """The next text of a turn."""
        ...

    def completed(self, turn: Turn, text: str, usage: AnswerUsage) -> Iterator[Event]:
        """After the whole text of a turn."""
        ...

    def failed(self, turn: Turn, error: QuireError) -> Iterator[Event]:
        """A turn that cannot be transcribed."""
        ...

    def refused(self, error: QuireError) -> Iterator[Event]:
        """A client event that cannot be obeyed."""
        ...


def created(session_id: str, settings: SessionSettings) -> Event:
    """The first event, which all dialects read: vLLM's fields are beside OpenAI's."""
    session = _session(session_id, settings)
    return {**_event("session.created", session=session), "id": session_id, "created": int(time.time())}


class OpenAIDialect:
    """OpenAI's events. is_old: those of sessions that `transcription_session.update` opens."""

    def __init__(self, is_old: bool) -> None:
        self._is_old = is_old

    def updated(self, session_id: str, settings: SessionSettings) -> Iterator[Event]:
        if self._is_old:
            yield _event("transcription_session.updated", session=_old_session(session_id, settings))
        else:
            yield _event("session.updated", session=_session(session_id, settings))

    def committed(self, turn: Turn) -> Iterator[Event]:
        yield _event("input_audio_buffer.committed", item_id=turn.id, previous_item_id=turn.previous)
        item = {
            "id": turn.id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        for name in ("created",) if self._is_old else ("added", "done"):
            yield _event(f"conversation.item.{name}", previous_item_id=turn.previous, item=item)

    def cleared(self) -> Iterator[Event]:
        yield _event("input_audio_buffer.cleared")

    def delta(self, turn: Turn, text: str) -> Iterator[Event]:
        yield _transcription("delta", turn, delta=text)

    def completed(self, turn: Turn, text: str, usage: AnswerUsage) -> Iterator[Event]:
        duration = {"type": "duration", "seconds": round(turn.seconds, 3)}
        yield _transcription("completed", turn, transcript=text, usage=duration)

    def failed(self, turn: Turn, error: QuireError) -> Iterator[Event]:
        yield _transcription("failed", turn, error=_error(error))

    def refused(self, error: QuireError) -> Iterator[Event]:
        caused_by = error.event_id if isinstance(error, EventFault) else None
        yield _event("error", error={**_error(error), "event_id": caused_by})


@dataclass
class VllmDialect:
    """vLLM's events: each commit transcribes, and the one with `final` ends with the text of all since the last."""

    _texts: list[str] = field(default_factory=list)
    _prompt_tokens: int = 0
    _output_tokens: int = 0
    _is_new: bool = True

    def updated(self, session_id: str, settings: SessionSettings) -> Iterator[Event]:
        yield from ()

    def committed(self, turn: Turn) -> Iterator[Event]:
        yield from ()

    def cleared(self) -> Iterator[Event]:
        yield from ()

    def delta(self, turn: Turn, text: str) -> Iterator[Event]:
        if self._is_new and self._texts and not text[:1].isspace():
            text = f" {text}"
        self._is_new = False
        self._texts.append(text)
        yield {"type": "transcription.delta", "delta": text}

    def completed(self, turn: Turn, text: str, usage: AnswerUsage) -> Iterator[Event]:
        self._prompt_tokens += usage.prompt
        self._output_tokens += usage.output
        self._is_new = True
        if turn.is_last:
            yield {"type": "transcription.done", "text": "".join(self._texts), "usage": self._usage()}
            self._texts, self._prompt_tokens, self._output_tokens = [], 0, 0

    def failed(self, turn: Turn, error: QuireError) -> Iterator[Event]:
        self._is_new = True
        yield from self.refused(error)

    def refused(self, error: QuireError) -> Iterator[Event]:
        yield {"type": "error", "error": error.message, "code": code_of(error)}

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._output_tokens,
            "total_tokens": self._prompt_tokens + self._output_tokens,
        }


def code_of(error: QuireError) -> str:
    """A name for the reason of an error."""
    if isinstance(error, EventFault):
        return error.code
    return NAMES.get(error.status, "invalid_request" if error.status < 500 else "processing_error")


def _event(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": name, "event_id": f"event_{uuid.uuid4().hex[:24]}", **fields}


def _transcription(name: str, turn: Turn, **fields: Any) -> Event:
    return _event(f"conversation.item.input_audio_transcription.{name}", item_id=turn.id, content_index=0, **fields)


def _error(error: QuireError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"type": kind, "code": code_of(error), "message": error.message, "param": error.param}


def _transcription_settings(settings: SessionSettings) -> dict[str, Any] | None:
    if not settings.transcribes:
        return None
    return {"model": settings.model, "language": settings.language, "prompt": settings.prompt}


def _session(session_id: str, settings: SessionSettings) -> dict[str, Any]:
    heard = {
        "format": settings.format.described(),
        "transcription": _transcription_settings(settings),
        "noise_reduction": None,
        "turn_detection": None,
    }
    return {
        "type": "transcription",
        "object": "realtime.transcription_session",
        "id": session_id,
        "audio": {"input": heard},
        "include": None,
    }


def _old_session(session_id: str, settings: SessionSettings) -> dict[str, Any]:
    names = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
    return {
        "object": "realtime.transcription_session",
        "id": session_id,
        "input_audio_format": names[settings.format.name],
        "input_audio_transcription": _transcription_settings(settings),
        "input_audio_noise_reduction": None,
        "turn_detection": None,
    }
