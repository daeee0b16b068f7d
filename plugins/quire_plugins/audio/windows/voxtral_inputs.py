"""Audio inputs of Voxtral: windows of log-mel frames, the last one padded with silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.errors import Unprocessable
from quire.records import Context, MappedMedia, MappedText
from quire_plugins.audio.log_mel import AudioLike, LogMelExtractor

if TYPE_CHECKING:
    from quire_plugins.audio.windows.voxtral import GroupedAudioTower


class WindowProcessor:
    """Maps `quire.media.audio.Audio` to one medium for each window, directly one after another."""

    def __init__(self, context: Context, token_id: int, tower: GroupedAudioTower, marker: str) -> None:
        """Raises CheckpointError when the folder has no matching feature extractor."""
        self._mels = LogMelExtractor(context.folder, tower.encoder.mels, 2 * tower.encoder.count)
        self._ids, self._marker = [token_id] * tower.length, marker

    def map(self, item: AudioLike) -> MappedText:
        """Raises Unprocessable for empty audio."""
        samples = item.resample(self._mels.rate)
        if not len(samples):
            raise Unprocessable("The audio is empty.")
        media = [MappedMedia(ids=self._ids, tensors={"frames": frames}) for frames in self._mels.windows(samples)]
        return MappedText(self._marker * len(media), self._marker, media)
