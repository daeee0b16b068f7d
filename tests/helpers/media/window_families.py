"""Families that hear windows of log-mel frames like Whisper: tiny configs, and transformers' rules for their sounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from llava_rig import TEXT
from qwen_audio_rig import HEARING as QWEN_HEARING
from sound_model import FIRST_TOKEN, RATE, Samples, SoundFamily
from torch import Tensor

MELS = 16
HEARING: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_mel_bins": MELS,
}


@dataclass(frozen=True)
class Windows:
    """Windows of so many seconds, and transformers' extractor of them. mask: name of the mask of frames, "" = none."""

    seconds: int
    mask: str = "input_features_mask"

    @property
    def extractor(self) -> Any:
        from transformers import WhisperFeatureExtractor

        return WhisperFeatureExtractor(feature_size=MELS, chunk_length=self.seconds)

    def save(self, folder: Path) -> None:
        """The extractor's settings."""
        self.extractor.save_pretrained(folder)

    def cut(self, samples: Samples) -> list[Samples]:
        size = self.seconds * RATE
        return [samples[start : start + size] for start in range(0, len(samples), size)]

    def features(self, sounds: Sequence[Samples]) -> dict[str, Tensor]:
        """Of each window by itself."""
        windows = [window for one in sounds for window in self.cut(one)]
        made = self.extractor(windows, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt")
        return {"input_features": made["input_features"], self.mask: made["attention_mask"]}

    def padded_features(self, sounds: Sequence[Samples]) -> dict[str, Tensor]:
        """Windows of each sound, which is padded to whole windows first."""
        size, frames = self.seconds * RATE, 100 * self.seconds
        padded = {"padding": True, "truncation": False, "pad_to_multiple_of": size, "return_tensors": "pt"}
        made = [self.extractor(one, sampling_rate=RATE, **padded)["input_features"] for one in sounds]
        return {"input_features": torch.cat([one.reshape(MELS, -1, frames).transpose(0, 1) for one in made])}


def _family(
    architecture: str,
    marker: str,
    windows: Windows,
    group: int,
    config: Mapping[str, Any],
    heard: str,
    lengths: Sequence[float] | None = None,
) -> SoundFamily:
    """group: tokens of an embedding. heard: what the encoder gets and what gets embeddings of a window that is not
    full: "valid" frames, the "whole" window and embeddings of valid frames, or "padded", the window for both.
    """

    def rows(samples: Samples) -> int:
        sizes = [len(one) for one in windows.cut(samples)]
        if heard == "padded":
            sizes = [windows.seconds * RATE] * len(sizes)
        return sum((-(-size // 320)) // group for size in sizes)

    def first(samples: Samples) -> tuple[str, Tensor]:
        frames = (windows.padded_features if heard == "padded" else windows.features)([samples])["input_features"][0].T
        return "frames", frames[: -(-len(windows.cut(samples)[0]) // 320) * 2 + 1] if heard == "valid" else frames

    return SoundFamily(
        architecture=architecture,
        config=config,
        tokens=(marker,),
        marker=marker,
        inputs=windows.padded_features if heard == "padded" else windows.features,
        expanded=lambda samples: marker * rows(samples),
        tensor=first,
        prepare=windows.save,
        seconds=lengths or (0.6, windows.seconds + 0.3, 0.31),
    )


def _config(kind: str, **hearing: Any) -> dict[str, Any]:
    """With a language model of this kind."""
    return {
        "text_config": {**TEXT, "model_type": kind},
        "audio_config": {**HEARING, **hearing},
        "audio_token_id": FIRST_TOKEN,
    }


def window_families() -> Mapping[str, SoundFamily]:
    """By name."""
    rope = {"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    return {
        "audio-flamingo": _family(
            "AudioFlamingo3ForConditionalGeneration",
            "<sound>",
            Windows(1),
            2,
            _config("qwen2", max_source_positions=50),
            "valid",
        ),
        "glm-asr": _family(
            "GlmAsrForConditionalGeneration",
            "<|pad|>",
            Windows(2),
            4,
            _config("llama", max_position_embeddings=100, rope_parameters=rope),
            "whole",
            (0.6, 2.3, 0.9),
        ),
        "qwen2-audio": _family(
            "Qwen2AudioForConditionalGeneration",
            "<|AUDIO|>",
            Windows(1, "feature_attention_mask"),
            2,
            {
                "text_config": {**TEXT, "model_type": "qwen2"},
                "audio_config": QWEN_HEARING,
                "audio_token_index": FIRST_TOKEN,
            },
            "valid",
            (0.6, 0.99, 0.31),
        ),
        "voxtral": _family(
            "VoxtralForConditionalGeneration",
            "[AUDIO]",
            Windows(2),
            4,
            _config("llama", max_source_positions=100),
            "padded",
        ),
    }
