"""Audio for Qwen2-Audio: the frames that sound, and as many ids as the tower makes rows of them."""

from __future__ import annotations

from quire.errors import Unprocessable
from quire.records import Context, Mapped
from quire_models.audio import AudioTower
from quire_plugins.log_mel import LogMels, Sound


class MapsAudio:
    """Audio, as `quire.media.audio.Audio` has it."""

    def __init__(self, context: Context, token_id: int, tower: AudioTower) -> None:
        """Raises CheckpointError when the folder has no feature extractor that fits."""
        self._mels = LogMels(context.folder, tower.mels, 2 * tower.count)
        self._token_id, self._tower, self._cut = token_id, tower, bool(context.options["cut"])

    def map(self, item: Sound) -> Mapped:
        """An id for each row. Raises TooLarge for audio longer than the model hears, Unprocessable for none to hear."""
        frames = self._mels.heard(self._mels.samples(item, self._cut))
        length = self._tower.rows(len(frames) // 2)
        if not length:
            raise Unprocessable("The audio is too short: it must be longer than two hundredths of a second.")
        return Mapped(ids=[self._token_id] * length, tensors={"frames": frames})
