"""Audio inputs of Qwen3-ASR: log-mel frames by the feature extractor of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.errors import Unprocessable
from quire.records import Context, MappedMedia
from quire_plugins.audio.audio_settings import check_finite, extractor_of_mels
from quire_plugins.audio.log_mel import AudioLike

if TYPE_CHECKING:
    from quire_plugins.audio.qwen3_asr.qwen3_asr import ChunkedAudioTower


class ChunkProcessor:
    """Maps `quire.media.audio.Audio` to frames and placeholder ids."""

    def __init__(self, context: Context, token_id: int, part: ChunkedAudioTower) -> None:
        """Raises CheckpointError when the folder has no matching feature extractor."""
        from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

        self._extract: Any = extractor_of_mels(Qwen3ASRFeatureExtractor, context, part.mels)
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
        check_finite(frames)
        return MappedMedia(ids=[self._id] * self._part.rows(len(frames)), tensors={"frames": frames})
