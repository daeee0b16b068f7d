"""Validates chat messages of the OpenAI API and normalizes them for chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from quire.errors import BadRequest
from quire.text.chat.media_parts import MEDIA_PARTS, MODALITIES, MediaPart, media_part, plugin_part

Message: TypeAlias = dict[str, Any]

MAX_MESSAGES = 4096
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
"""Part type → the field that holds its text."""

_REASONING = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class Conversation:
    """Messages in the form that templates read, and the media of their parts.

    The content of a message is a string, or a list of {"type": "text", "text": …} and {"type": modality} parts.
    """

    messages: tuple[Message, ...]
    media: tuple[MediaPart, ...] = ()

    @property
    def items(self) -> dict[str, list[Any]]:
        """The media items by modality, in order of appearance: the form of `multi_modal_data`."""
        items: dict[str, list[Any]] = {}
        for medium in self.media:
            items.setdefault(medium.modality, []).append(medium.item)
        return items


def check_conversation(messages: Any, modalities: Sequence[str] = ()) -> Conversation:
    """Validate and normalize `messages`. Raises `BadRequest`, which names the wrong message."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise BadRequest("`messages` must be a non-empty list of messages.", "messages")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"`messages` takes at most {MAX_MESSAGES} messages, got {len(messages)}.", "messages")
    media: list[MediaPart] = []
    checked = tuple(_message(message, f"messages[{i}]", modalities, media) for i, message in enumerate(messages))
    return Conversation(checked, tuple(media))


def _message(message: Any, where: str, modalities: Sequence[str], media: list[MediaPart]) -> Message:
    if not isinstance(message, Mapping):
        raise BadRequest(
            f"`{where}` must be an object with role and content, got {type(message).__name__}.", "messages"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest(f"`{where}.role` must be a non-empty string such as user or assistant.", "messages")
    normalized: Message = dict(message)
    normalized["content"] = _content(message.get("content"), f"{where}.content", modalities, media)
    calls = message.get("tool_calls")
    if calls is None:
        normalized.pop("tool_calls", None)
    else:
        normalized["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is not None:  # templates use different names for it
        normalized.update(dict.fromkeys(_REASONING, reasoning))
    return normalized


def _content(content: Any, where: str, modalities: Sequence[str], media: list[MediaPart]) -> Any:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise BadRequest(f"`{where}` must be a string or a list of parts, got {type(content).__name__}.", "messages")
    return [_part(part, f"{where}[{i}]", modalities, media) for i, part in enumerate(content)]


def _part(part: Any, where: str, modalities: Sequence[str], media: list[MediaPart]) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise BadRequest(f"`{where}` must be an object with a type, such as text.", "messages")
    if kind in TEXT_PARTS:
        text = part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise BadRequest(f"`{where}.{TEXT_PARTS[kind]}` must be a string.", "messages")
        return {"type": "text", "text": text}
    is_plugin_modality = kind in modalities and kind not in MODALITIES
    modality = kind if is_plugin_modality else MEDIA_PARTS.get(kind)
    if modality is None or modality not in modalities:
        accepted = " and ".join(("text", *modalities))
        raise BadRequest(f"`{where}` is of type {kind!r:.40}, but this model takes {accepted} only.", "messages")
    media.append(plugin_part(kind, part, where) if is_plugin_modality else media_part(kind, part, where))
    return {"type": modality}


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """The calls with `arguments` as objects, because templates convert them to JSON themselves."""
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise BadRequest(f"`{where}` must be a list.", "messages")
    normalized = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRequest(f"`{where}[{i}].function` must be an object with a name.", "messages")
        normalized.append({**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}})
    return normalized


def _arguments(value: Any) -> Any:
    """The value of JSON text. Text that is not JSON, such as an invalid call of a model, is returned unchanged."""
    if value is None or value == "":
        return {}
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
