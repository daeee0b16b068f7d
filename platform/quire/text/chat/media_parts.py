"""Parses media parts of chat messages, in the formats of the OpenAI API, vLLM and Hugging Face's templates.

Nothing is fetched here: the result names the URL or holds the item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import BadRequest
from quire.media.items import MediaURL

MEDIA_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "image": "image",
    "image_pil": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio": "audio",
    "video_url": "video",
    "video": "video",
}
"""Part type → modality."""

MODALITIES = frozenset(MEDIA_PARTS.values())
"""Modalities whose media are fetched and decoded for the mapper. Other modalities come from plugins."""

_FIELDS = {
    "input_image": ("image_url",),
    "image": ("image", "url"),
    "audio": ("audio", "url"),
    "video": ("video", "url"),
}
"""Part type → fields that may hold the medium, unless the field is named like the type."""

_DETAIL_LEVELS = ("auto", "low", "high", "original")
_JSON_TYPES = (str, Mapping, list, int, float, type(None))


@dataclass(frozen=True)
class MediaPart:
    """A media part of a message. item: a `MediaURL`, or an object that Python code passed."""

    modality: str
    item: Any


def media_part(kind: str, part: Mapping[str, Any], where: str) -> MediaPart:
    """Parse a part whose type is in `MEDIA_PARTS`.

    where: path of the part in error messages. Raises `BadRequest` for a part without a medium.
    """
    if kind == "input_audio":
        return MediaPart("audio", _inline_audio(part, f"{where}.input_audio"))
    fields = _FIELDS.get(kind, (kind,))
    field = next((name for name in fields if part.get(name) is not None), fields[0])
    given = part.get(field)
    value: Any = given
    where, detail = f"{where}.{field}", part.get("detail")
    if isinstance(given, Mapping):
        value, detail, where = given.get("url"), given.get("detail", detail), f"{where}.url"
    if MEDIA_PARTS[kind] == "image":
        _check_detail(detail, where)
    if isinstance(value, str) and value and kind != "image_pil":
        return MediaPart(MEDIA_PARTS[kind], MediaURL(url=value, low_detail=detail == "low"))
    if isinstance(value, _JSON_TYPES):
        raise BadRequest(f"`{where}` must be a URL (http:, https:, data: or file:).", "messages")
    return MediaPart(MEDIA_PARTS[kind], value)


def plugin_part(modality: str, part: Mapping[str, Any], where: str) -> MediaPart:
    """Parse a part `{"type": modality, modality: item}` of a plugin's modality. The mapper gets the item unchanged.

    Raises `BadRequest` for a part without an item.
    """
    if part.get(modality) is None:
        raise BadRequest(f"`{where}.{modality}` must be the {modality} of this part.", "messages")
    return MediaPart(modality, part[modality])


def _check_detail(detail: Any, where: str) -> None:
    if detail is not None and detail not in _DETAIL_LEVELS:
        raise BadRequest(
            f"The `detail` of `{where}` must be one of {', '.join(_DETAIL_LEVELS)}; got {detail!r:.40}.", "messages"
        )


def _inline_audio(part: Mapping[str, Any], where: str) -> MediaURL:
    """Parse `{"data": base64, "format": "wav"}`. The format is detected from the data."""
    value = part.get("input_audio")
    data = value.get("data") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(data, str):
        raise BadRequest(f"`{where}` must be an object with base64 as `data`, and a `format`.", "messages")
    audio_format = value.get("format")
    if audio_format is not None and not isinstance(audio_format, str):
        raise BadRequest(f"`{where}.format` must be a string such as wav or mp3.", "messages")
    return MediaURL(url=f"data:;base64,{data}")
