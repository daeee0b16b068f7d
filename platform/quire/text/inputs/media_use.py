"""Counts the media of a prompt for accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.media.items import MediaBytes
from quire.types import MediaUse


def media_use(given: Mapping[str, Any]) -> MediaUse:
    """What the media of a prompt are, once they are decoded. given: an item or a list of items by modality.

    Bytes are known of media that were fetched or sent as a file, seconds of audio that was decoded.
    """
    items: list[Any] = []
    for one in given.values():
        items += one if isinstance(one, Sequence) and not isinstance(one, str | bytes) else [one]
    files = [item for item in items if isinstance(item, MediaBytes)]
    decoded_s = sum(time.audio_s for time in {id(file.time): file.time for file in files}.values())
    given_s = sum(getattr(item, "duration_s", 0.0) for item in items)
    return MediaUse(len(items), sum(len(file.data) for file in files), decoded_s + given_s)
