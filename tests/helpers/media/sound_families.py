"""The families of `test_sound_families`: tiny configs, and transformers' rules for the text in place of a sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from llava_rig import TEXT
from sound_model import FIRST_TOKEN, RATE, Samples, SoundFamily
from torch import Tensor

PATIENT = {"lora_load_timeout_s": 900.0}
"""The adapter of a folder is read when the engine is built, also on a busy machine."""


def _granite_frames(samples: Samples) -> Tensor:
    """What transformers' extractor makes with torchaudio, by transformers' own functions for audio."""
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    filters = mel_filter_bank(257, 8, 0.0, RATE / 2, RATE, norm=None, mel_scale="htk")
    window = window_function(400, "hann")
    mel = spectrogram(samples, window, 400, 160, fft_length=512, power=2.0, mel_filters=filters, mel_floor=1e-10)
    logs = torch.from_numpy(mel).float().log10().T
    frames = logs.maximum(logs.max() - 8.0) / 4 + 1
    return frames[: len(frames) // 2 * 2].reshape(-1, 16)


def _granite_speech() -> SoundFamily:
    def rows(samples: Samples) -> int:
        return -(-((len(samples) // 160 + 1) // 2) // 6) * 3

    def inputs(sounds: Sequence[Samples]) -> dict[str, Tensor]:
        sizes = torch.tensor([rows(one) for one in sounds])
        return {
            "input_features": torch.stack([_granite_frames(one) for one in sounds]),
            "input_features_mask": torch.arange(int(sizes.max())) < sizes[:, None],
        }

    return SoundFamily(
        architecture="GraniteSpeechForConditionalGeneration",
        config={
            "text_config": {**TEXT, "model_type": "granite", "embedding_multiplier": 3.0},
            "encoder_config": {
                "input_dim": 16,
                "num_layers": 2,
                "hidden_dim": 32,
                "feedforward_mult": 2,
                "num_heads": 2,
                "output_dim": 10,
                "context_size": 20,
                "max_pos_emb": 24,
                "conv_kernel_size": 5,
            },
            "projector_config": {
                "model_type": "blip_2_qformer",
                "hidden_size": 24,
                "intermediate_size": 40,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "encoder_hidden_size": 32,
            },
            "audio_token_index": FIRST_TOKEN,
            "window_size": 6,
            "downsample_rate": 2,
        },
        tokens=("<|audio|>",),
        marker="<|audio|>",
        inputs=inputs,
        expanded=lambda samples: "<|audio|>" * rows(samples),
        files={"preprocessor_config.json": {"melspec_kwargs": {"n_mels": 8}}},
        tensor=lambda samples: ("frames", _granite_frames(samples)),
        own={"audio": ""},
        settings=PATIENT,
    )


HEARING = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_mel_bins": 16,
}
WINDOW = RATE
"""Samples of a window of these encoders, which hear one second."""


def _extractor() -> Any:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=16, chunk_length=1)


def _windows(samples: Samples) -> list[Samples]:
    return [samples[start : start + WINDOW] for start in range(0, len(samples), WINDOW)]


def _features(windows: Sequence[Samples]) -> dict[str, Tensor]:
    made = _extractor()(list(windows), sampling_rate=RATE, return_attention_mask=True, return_tensors="pt")
    return {"input_features": made["input_features"], "input_features_mask": made["attention_mask"]}


def _whisper_like(architecture: str, marker: str, group: int, heard: Mapping[str, Any], **config: Any) -> SoundFamily:
    """A model of windows of one second. group: tokens of an embedding."""

    def rows(samples: Samples) -> int:
        return sum((-(-len(one) // 320)) // group for one in _windows(samples))

    def first(samples: Samples) -> tuple[str, Tensor]:
        found = _features(_windows(samples)[:1])
        count = 100 if "rope_parameters" in heard else -(-len(samples[:WINDOW]) // 320) * 2 + 1
        return "frames", found["input_features"][0].T[:count]

    return SoundFamily(
        architecture=architecture,
        config={"audio_config": {**HEARING, **heard}, "audio_token_id": FIRST_TOKEN, **config},
        tokens=(marker,),
        marker=marker,
        inputs=lambda sounds: _features([window for one in sounds for window in _windows(one)]),
        expanded=lambda samples: marker * rows(samples),
        tensor=first,
        prepare=lambda folder: _extractor().save_pretrained(folder),
    )


def families() -> Mapping[str, SoundFamily]:
    """By name."""
    return {
        "granite-speech": _granite_speech(),
        "audio-flamingo": _whisper_like(
            "AudioFlamingo3ForConditionalGeneration",
            "<sound>",
            2,
            {"max_source_positions": 50},
            text_config={**TEXT, "model_type": "qwen2"},
        ),
        "glm-asr": _whisper_like(
            "GlmAsrForConditionalGeneration",
            "<|pad|>",
            4,
            {"max_position_embeddings": 50, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            text_config={**TEXT, "model_type": "llama"},
        ),
    }
