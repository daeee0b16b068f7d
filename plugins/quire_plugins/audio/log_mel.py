"""Log-mel spectrograms for Whisper's encoder, computed by the feature extractor of transformers. This module is not a
plugin.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError, TooLarge
from quire_plugins.audio.audio_settings import check_finite, feature_extractor


class AudioLike(Protocol):
    """What input mappers of audio receive."""

    def resample(self, rate: int) -> NDArray[np.float32]:
        """Samples at a sample rate."""
        ...


class LogMelExtractor:
    """The feature extractor of a model's folder. Thread-safe.

    rate: samples per second. seconds: longest input.
    """

    def __init__(self, folder: str | None, mels: int, frames: int) -> None:
        """mels: values per frame; frames: largest number of frames. Raises CheckpointError if the folder has no
        matching extractor.
        """
        from transformers import WhisperFeatureExtractor

        self._extract: Any = feature_extractor(WhisperFeatureExtractor, folder)
        has, numbers = self._extract.nb_max_frames, self._extract.feature_size
        if (has, numbers) != (frames, mels):
            raise CheckpointError(
                f"The feature extractor makes {has} frames of {numbers} numbers; the model takes {frames} of {mels}."
            )
        self.frames: int = has
        self.rate: int = self._extract.sampling_rate
        self.seconds: float = self._extract.n_samples / self.rate

    def samples(self, sound: AudioLike, cut: bool = False) -> NDArray[np.float32]:
        """Float32 [samples] at the model's rate. cut: drop what is beyond `seconds` instead of raising TooLarge."""
        samples = sound.resample(self.rate)
        if len(samples) > self._extract.n_samples and not cut:
            raise TooLarge(
                f"The audio is {len(samples) / self.rate:.1f} seconds long; the model takes at most {self.seconds:g}."
            )
        return samples[: self._extract.n_samples]

    def full_window(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Float32 [frames, mels], padded with silence to the longest input."""
        return self._frames(samples, self._extract.n_samples)

    def windows(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Float32 [windows, frames, mels] of audio of any length, padded with silence to whole windows."""
        length = -(-len(samples) // self._extract.n_samples) * self._extract.n_samples
        return self._frames(samples, length).reshape(-1, self.frames, self._extract.feature_size)

    def valid_frames(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Float32 [n, mels]: the frames that contain samples, rounded up to an even number, and the next one if it
        exists.

        They equal those of the padded window; the frames of silence after them are not computed.
        """
        hop = self._extract.hop_length
        frames = -(-len(samples) // hop)
        wanted = min(-(-frames // 2) * 2 + 1, self.frames)
        return self._frames(samples, min(wanted * hop + self._extract.n_fft, self._extract.n_samples))[:wanted]

    def _frames(self, samples: NDArray[np.float32], length: int) -> NDArray[np.float32]:
        """Frames of so many samples, padded with silence. Raises Unprocessable."""
        made = self._extract(samples, sampling_rate=self.rate, max_length=length, return_tensors="np")
        frames: NDArray[np.float32] = made["input_features"][0].T
        check_finite(frames)
        return frames
