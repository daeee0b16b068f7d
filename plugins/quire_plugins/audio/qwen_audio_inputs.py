"""Audio inputs of Qwen2-Audio: frames that contain sound, and one id per embedding of the tower."""

from __future__ import annotations

from quire.errors import Unprocessable
from quire.records import Context, MappedMedia
from quire_models.parts.audio import AudioTower
from quire_plugins.audio.log_mel import AudioLike, LogMelExtractor


class AudioProcessor:
    """Maps `quire.media.audio.Audio` to log-mel frames and placeholder ids."""

    def __init__(self, context: Context, token_id: int, tower: AudioTower) -> None:
        """Raises CheckpointError when the folder has no matching feature extractor."""
        self._mels = LogMelExtractor(context.folder, tower.mels, 2 * tower.count)
        self._token_id, self._tower, self._cut = token_id, tower, bool(context.options["cut"])

    def map(self, item: AudioLike) -> MappedMedia:
        """One id per embedding. Raises TooLarge for audio that is too long, Unprocessable for empty audio."""
        frames = self._mels.valid_frames(self._mels.samples(item, self._cut))
        length = self._tower.rows(len(frames) // 2)
        if not length:
            raise Unprocessable("The audio is too short: it must be longer than two hundredths of a second.")
        return MappedMedia(ids=[self._token_id] * length, tensors={"frames": frames})
