"""Parts of chat messages that are media, in the shapes of the OpenAI API, of vLLM and of Hugging Face's templates.

It says what is to be fetched, and fetches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import BadRequest
from quire.media.items import Linked

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
"""Those whose media are fetched and decoded before a mapper gets them. Others are of plugins."""

_FIELDS = {
    "input_image": ("image_url",),
    "image": ("image", "url"),
    "audio": ("audio", "url"),
    "video": ("video", "url"),
}
"""Part type → fields that may hold the medium, where it is not the one named like the type."""

_DETAILS = ("auto", "low", "high", "original")
_JSON = (str, Mapping, list, int, float, type(None))


@dataclass(frozen=True)
class MediaPart:
    """A part of a message that is no text. item: `Linked`, or what Python code put there."""

    modality: str
    item: Any


def media_part(kind: str, part: Mapping[str, Any], where: str) -> MediaPart:
    """The medium of a part whose type is one of `MEDIA_PARTS`.

    where: the part, for errors. Raises `BadRequest` for a part that names no medium.
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
        return MediaPart(MEDIA_PARTS[kind], Linked(url=value, low=detail == "low"))
    if isinstance(value, _JSON):
        raise BadRequest(f"`{where}` must be a URL (http:, https:, data: or file:).", "messages")
    return MediaPart(MEDIA_PARTS[kind], value)


def own_part(modality: str, part: Mapping[str, Any], where: str) -> MediaPart:
    """The item of a part `{"type": modality, modality: item}`, for a modality that a plugin brought: it goes to the
    mapper as it stands. Raises `BadRequest` for a part without one."""
    if part.get(modality) is None:
        raise BadRequest(f"`{where}.{modality}` must be the {modality} of this part.", "messages")
    return MediaPart(modality, part[modality])


def _check_detail(detail: Any, where: str) -> None:
    if detail is not None and detail not in _DETAILS:
        raise BadRequest(
            f"The `detail` of `{where}` must be one of {', '.join(_DETAILS)}; got {detail!r:.40}.", "messages"
        )


def _inline_audio(part: Mapping[str, Any], where: str) -> Linked:
    """`{"data": base64, "format": "wav"}`. The data themselves say what format they have."""
    value = part.get("input_audio")
    data = value.get("data") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(data, str):
        raise BadRequest(f"`{where}` must be an object with base64 as `data`, and a `format`.", "messages")
    form = value.get("format")
    if form is not None and not isinstance(form, str):
        raise BadRequest(f"`{where}.format` must be a string such as wav or mp3.", "messages")
    return Linked(url=f"data:;base64,{data}")
