"""Reads the events that clients send: JSON within bounds, and base64 audio."""

from __future__ import annotations

import binascii
from dataclasses import dataclass

import msgspec

from quire.plugin import BadRequest, QuireError

MAX_VALUES = 4096
"""Of lists, objects and commas in one event. The largest that is known has about fifty."""

MAX_EVENT_ID = 512
"""Characters of an id, which comes back in the error that its event causes."""

BASE64_BLOCK = 1 << 18
"""Characters decoded in one go: other threads can run between two blocks."""

NULL = msgspec.Raw(b"null")
"""The JSON text of a field that is absent."""


class EventFault(BadRequest):
    """A client event that cannot be obeyed. code: a name for the reason, as in OpenAI's and vLLM's error events."""

    def __init__(self, code: str, message: str, param: str | None = None, event_id: str | None = None) -> None:
        super().__init__(message, param)
        self.code = code
        self.event_id = event_id


class ClientEvent(msgspec.Struct):
    """The fields of all known events; others are skipped. session: JSON text, which `settings` reads."""

    type: str
    event_id: str | None = None
    audio: str | None = None
    session: msgspec.Raw = NULL
    model: str | None = None
    final: bool = False

    @property
    def has_session(self) -> bool:
        return not is_null(self.session)


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """An event with its audio decoded."""

    event: ClientEvent
    audio: bytes


def is_null(value: msgspec.Raw) -> bool:
    """Whether a field is absent or null."""
    return bytes(value) == b"null"


_decoder = msgspec.json.Decoder(ClientEvent)


def read_event(text: str) -> ReadEvent:
    """The event of a message. Raises `EventFault`. Blocks for up to some ten ms, in pieces, if the message is large."""
    if sum(map(text.count, "[{,")) > MAX_VALUES:  # strings are counted too: the alphabet of base64 has none of these
        raise EventFault("invalid_event", f"An event may have at most {MAX_VALUES} JSON values.")
    try:
        event = _decoder.decode(text)
    except RecursionError:
        raise EventFault("invalid_json", "The event is nested too deeply.") from None
    except msgspec.ValidationError as error:
        raise EventFault("invalid_event", f"The event is wrong: {error}") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise EventFault("invalid_json", f"The event is not valid JSON: {error}") from None
    if len(event.event_id or "") > MAX_EVENT_ID:
        raise EventFault("invalid_event", f"`event_id` may have at most {MAX_EVENT_ID} characters.", "event_id")
    try:
        return ReadEvent(event, decode_base64(event.audio or ""))
    except QuireError as error:
        raise EventFault("invalid_audio", error.message, "audio", event.event_id) from None


def decode_base64(text: str) -> bytes:
    """The bytes of strict base64. Raises `BadRequest`."""
    blocks: list[bytes] = []
    try:
        for begin in range(0, len(text), BASE64_BLOCK):
            block = text[begin : begin + BASE64_BLOCK]
            if "=" in block and begin + BASE64_BLOCK < len(text):
                raise ValueError("padding before the end")
            blocks.append(binascii.a2b_base64(block, strict_mode=True))
    except ValueError as error:  # of which binascii.Error is one
        raise BadRequest(f"`audio` must be base64: {error}.", "audio") from None
    return b"".join(blocks)
