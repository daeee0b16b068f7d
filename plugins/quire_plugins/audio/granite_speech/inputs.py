"""Audio inputs of Granite Speech: log-mel frames in pairs, and one id for each embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from quire.errors import CheckpointError, Unprocessable
from quire.records import Context, MappedMedia
from quire_plugins.audio.audio_settings import check_finite, extractor_settings
from quire_plugins.audio.log_mel import AudioLike

if TYPE_CHECKING:
    from quire_plugins.audio.granite_speech.granite_speech import QueryTower

DEFAULTS = {"sample_rate": 16_000, "n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 80}
"""`melspec_kwargs` of the feature extractor, which are arguments of torchaudio's `MelSpectrogram`."""


class GraniteSpeechProcessor:
    """Maps `quire.media.audio.Audio` to frames and placeholder ids."""

    def __init__(self, context: Context, token_id: int, tower: QueryTower) -> None:
        """Raises CheckpointError when the folder's feature extractor does not match the model."""
        from transformers.audio_utils import mel_filter_bank

        found = {**DEFAULTS, **(extractor_settings(context).get("melspec_kwargs") or {})}
        self.rate: int = found["sample_rate"]
        self._fft, self._window, self._hop = (found[name] for name in ("n_fft", "win_length", "hop_length"))
        if 2 * found["n_mels"] != tower.encoder.inputs:
            raise CheckpointError(
                f"The feature extractor makes frames of {2 * found['n_mels']} numbers (two of `n_mels`"
                f" {found['n_mels']}); the model takes {tower.encoder.inputs}."
            )
        filters: Any = mel_filter_bank(
            1 + self._fft // 2, found["n_mels"], 0.0, self.rate / 2, self.rate, norm=None, mel_scale="htk"
        )
        self._filters = torch.from_numpy(filters).float()
        self._id, self._tower = token_id, tower

    def map(self, item: AudioLike) -> MappedMedia:
        """One id for each embedding. Raises Unprocessable for audio of less than a few hundredths of a second."""
        samples = item.resample(self.rate)
        if len(samples) <= max(self._fft // 2, self._hop):
            raise Unprocessable("The audio is too short: it must be longer than two hundredths of a second.")
        frames = self._frames(samples)
        ids = [self._id] * self._tower.projector.rows(len(frames))
        return MappedMedia(ids=ids, tensors={"frames": frames})

    def _frames(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Float32 [pairs of frames, 2 n_mels]: log10 of the mel spectrogram, at most 8 below its largest value."""
        spectrum = torch.stft(
            torch.from_numpy(samples),
            self._fft,
            self._hop,
            self._window,
            torch.hann_window(self._window),
            return_complex=True,
        )
        mel = (spectrum.abs().square().T @ self._filters).clamp(min=1e-10).log10()
        mel = mel.maximum(mel.max() - 8.0) / 4 + 1
        pairs: NDArray[np.float32] = mel[: len(mel) // 2 * 2].reshape(-1, 2 * mel.shape[1]).numpy()
        check_finite(pairs)
        return pairs
