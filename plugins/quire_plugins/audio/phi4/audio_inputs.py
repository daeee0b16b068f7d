"""Audio inputs of Phi-4 multimodal: log-mel frames by the feature extractor of transformers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.errors import Unprocessable
from quire.records import Context, MappedMedia
from quire_plugins.audio.audio_settings import check_finite, extractor_of_mels
from quire_plugins.audio.log_mel import AudioLike

if TYPE_CHECKING:
    from quire_plugins.audio.phi4.audio_encoder import Phi4AudioTower


class Phi4AudioProcessor:
    """Maps `quire.media.audio.Audio` to frames and placeholder ids."""

    def __init__(self, context: Context, token_id: int, part: Phi4AudioTower) -> None:
        """Raises CheckpointError when the folder has no matching feature extractor."""
        from transformers import Phi4MultimodalFeatureExtractor

        self._extract: Any = extractor_of_mels(Phi4MultimodalFeatureExtractor, context, part.mels)
        self._id, self._part = token_id, part

    def map(self, item: AudioLike) -> MappedMedia:
        """Audio of a prompt without images. Raises Unprocessable for audio of less than a frame."""
        return self.map_beside(item, ())

    def map_beside(self, item: AudioLike, modalities: Collection[str]) -> MappedMedia:
        """One id for each embedding; a prompt with images has other embeddings of audio."""
        samples = item.resample(self._extract.sampling_rate)
        if len(samples) < self._extract.win_length:
            raise Unprocessable("The audio is too short: it must be longer than three hundredths of a second.")
        made = self._extract(samples, sampling_rate=self._extract.sampling_rate, return_tensors="np")
        frames = made["audio_input_features"][0]
        check_finite(frames)
        tensors = {"frames": frames, "beside_images": np.array([int("image" in modalities)], np.int64)}
        return MappedMedia(ids=[self._id] * self._part.rows(len(frames)), tensors=tensors)
