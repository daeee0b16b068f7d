"""Audio inputs of Qwen3-ASR: log-mel frames by the feature extractor of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quire.errors import CheckpointError, Unprocessable
from quire.records import Context, MappedMedia
from quire_plugins.audio.log_mel import AudioLike

if TYPE_CHECKING:
    from quire_plugins.audio.qwen3_asr.qwen3_asr import ChunkedHearing


class ChunkProcessor:
    """Maps `quire.media.audio.Audio` to frames and placeholder ids."""

    def __init__(self, context: Context, token_id: int, part: ChunkedHearing) -> None:
        """Raises CheckpointError when the folder has no matching feature extractor."""
        from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

        try:
            self._extract: Any = Qwen3ASRFeatureExtractor.from_pretrained(context.folder, local_files_only=True)
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
        """One id for each embedding; short audio is padded with silence. Raises Unprocessable for empty audio."""
        rate = self._extract.sampling_rate
        samples = item.resample(rate)
        if not len(samples):
            raise Unprocessable("The audio is empty.")
        settings = {"padding": True, "n_window": 0, "return_attention_mask": True, "return_tensors": "np"}
        made = self._extract(samples, sampling_rate=rate, **settings)
        frames = made["input_features"][0].T[: int(made["attention_mask"][0].sum())]
        if not np.isfinite(frames).all():
            raise Unprocessable("The audio is too loud: its samples should be from -1 to 1.")
        return MappedMedia(ids=[self._id] * self._part.rows(len(frames)), tensors={"frames": frames})
