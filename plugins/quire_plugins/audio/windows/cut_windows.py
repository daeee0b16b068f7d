"""Audio in windows, of which the last one has embeddings only for its audio. This module is not a plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.errors import Unprocessable
from quire.records import Context, MappedMedia, MappedText
from quire_plugins.audio.log_mel import AudioLike, LogMelExtractor

if TYPE_CHECKING:
    from quire_plugins.audio.windows.voxtral import GroupedAudioTower


class CutWindowProcessor:
    """Maps `quire.media.audio.Audio` to one medium for each window, directly one after another.

    padded: whether the encoder gets silence after the audio, up to a whole window, or nothing.
    """

    def __init__(self, context: Context, token_id: int, tower: GroupedAudioTower, marker: str, *, padded: bool) -> None:
        """Raises CheckpointError when the folder has no matching feature extractor."""
        self._mels = LogMelExtractor(context.folder, tower.encoder.mels, 2 * tower.encoder.count)
        self._id, self._tower, self._marker, self._padded = token_id, tower, marker, padded

    def map(self, item: AudioLike) -> MappedText:
        """Raises Unprocessable for audio that is too short for an embedding."""
        media = list(self._media(item.resample(self._mels.rate)))
        if not media:
            raise Unprocessable("The audio is too short: it must be longer than about a tenth of a second.")
        return MappedText(self._marker * len(media), self._marker, media)

    def _media(self, samples: NDArray[np.float32]) -> Iterator[MappedMedia]:
        size = round(self._mels.seconds * self._mels.rate)
        for start in range(0, len(samples), size):
            window = samples[start : start + size]
            heard = self._mels.valid_frames(window)
            length = self._tower.rows(len(heard))
            if length and self._padded:
                tensors = {"frames": self._mels.full_window(window), "rows": np.array([length], np.int64)}
                yield MappedMedia(ids=[self._id] * length, tensors=tensors)
            elif length:
                yield MappedMedia(ids=[self._id] * length, tensors={"frames": heard})
