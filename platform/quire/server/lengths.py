"""How long the lists of a body may be, checked before any of their items is."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from quire.errors import BadRequest
from quire.sampling import MAX_ALLOWED_TOKEN_IDS, MAX_BAD_WORDS, MAX_BIASES, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS

MAX_MESSAGE_PARTS = 16384
"""Messages of a conversation, parts of their content and calls in them, all together."""

_MOST = {
    "logit_bias": (MAX_BIASES, "entries"),
    "bad_words": (MAX_BAD_WORDS, "strings"),
    "stop": (MAX_STOP_STRINGS, "strings"),
    "stop_token_ids": (MAX_STOP_TOKEN_IDS, "token ids"),
    "allowed_token_ids": (MAX_ALLOWED_TOKEN_IDS, "token ids"),
}


def check_lengths(body: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for a list that is too long, or an object with too many members."""
    for name, (most, things) in _MOST.items():
        value = body.get(name)
        if isinstance(value, Sized) and not isinstance(value, str) and len(value) > most:
            raise BadRequest(f"`{name}` takes at most {most} {things}, got {len(value)}.", name)
    messages = body.get("messages")
    if isinstance(messages, list):
        _check_messages(messages)
    nested = body.get("sampling_params")
    if isinstance(nested, Mapping):
        check_lengths({name: nested.get(name) for name in _MOST})


def _check_messages(messages: list[Any]) -> None:
    count = len(messages)
    for message in messages if count <= MAX_MESSAGE_PARTS else ():
        if isinstance(message, Mapping):
            parts = (message.get("content"), message.get("tool_calls"))
            count += sum(len(part) for part in parts if isinstance(part, list))
    if count > MAX_MESSAGE_PARTS:
        raise BadRequest(
            f"`messages` may have at most {MAX_MESSAGE_PARTS} messages, parts of content and tool calls, together.",
            "messages",
        )
