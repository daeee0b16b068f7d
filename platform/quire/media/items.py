"""Media that are not decoded yet: where one is, or its bytes. It reads nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from quire.media.limits import DecodingTime


@dataclass(frozen=True, kw_only=True)
class Linked:
    """A medium that a URL leads to: http:, https:, data: or file:. low: an image is wanted in low detail."""

    url: str
    low: bool = False


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The bytes of a file of a medium. low: as of `Linked`. time: that all media of its prompt have to be decoded."""

    data: bytes
    low: bool = False
    time: DecodingTime = field(default_factory=lambda: DecodingTime(inf), repr=False, compare=False)
