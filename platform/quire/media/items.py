"""Media that are not decoded yet: a URL or the bytes of a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from quire.media.limits import DecodingTime


@dataclass(frozen=True, kw_only=True)
class MediaURL:
    """A medium at an http:, https:, data: or file: URL. low_detail: shrink an image, as OpenAI's `detail: low`."""

    url: str
    low_detail: bool = False


@dataclass(frozen=True, kw_only=True)
class MediaBytes:
    """The bytes of a media file. low_detail: as in `MediaURL`. time: decoding time left to all media of its prompt."""

    data: bytes
    low_detail: bool = False
    time: DecodingTime = field(default_factory=lambda: DecodingTime(inf), repr=False, compare=False)


def num_bytes(items: Mapping[str, Iterable[Any]]) -> int:
    """The bytes of all files among fetched items by modality."""
    return sum(len(item.data) for several in items.values() for item in several if isinstance(item, MediaBytes))
