"""Audio inputs of Phi-4 multimodal: log-mel frames by the feature extractor of transformers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.errors import CheckpointError, Unprocessable
from quire.records import Context, MappedMedia
from quire_plugins.audio.log_mel import AudioLike

if TYPE_CHECKING:
    from quire_plugins.audio.phi4.hearing import Hearing


class HearingProcessor:
    """Maps `quire.media.audio.Audio` to frames and placeholder ids."""

    def __init__(self, context: Context, token_id: int, part: Hearing) -> None:
        """Raises CheckpointError when the folder has no matching feature extractor."""
        from transformers import Phi4MultimodalFeatureExtractor

        try:
            self._extract: Any = Phi4MultimodalFeatureExtractor.from_pretrained(context.folder, local_files_only=True)
        except Exception as error:  # transformers raises many types for unusable files
            raise CheckpointError(
                f"{context.folder} has no feature extractor that can be used (preprocessor_config.json):"
                f" {' '.join(str(error).split())[:300]}"
            ) from error
        if self._extract.feature_size != part.mels:
            raise CheckpointError(
                f"The feature extractor makes frames of {self._extract.feature_size} numbers; the model hears"
                f" {part.mels}."
            )
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
        if not np.isfinite(frames).all():
            raise Unprocessable("The audio is too loud: its samples should be from -1 to 1.")
        tensors = {"frames": frames, "beside_images": np.array([int("image" in modalities)], np.int64)}
        return MappedMedia(ids=[self._id] * self._part.rows(len(frames)), tensors=tensors)
