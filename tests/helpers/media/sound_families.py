"""The families of `test_sound_families`: tiny configs, and transformers' rules for the text in place of a sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from llava_rig import TEXT
from sound_model import FIRST_TOKEN, RATE, Samples, SoundFamily
from torch import Tensor
from window_families import window_families

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


def _qwen3_asr() -> SoundFamily:
    def features(sounds: Sequence[Samples]) -> dict[str, Tensor]:
        made = _qwen3_extractor()(list(sounds), sampling_rate=RATE, padding=True, return_attention_mask=True)
        return {"input_features": made["input_features"], "input_features_mask": made["attention_mask"]}

    def rows(samples: Samples) -> int:
        frames = max(len(samples), 2000) // 160
        return frames // 100 * 13 + -(-(frames % 100) // 8)

    return SoundFamily(
        architecture="Qwen3ASRForConditionalGeneration",
        config={
            "text_config": {**TEXT, "model_type": "qwen3"},
            "audio_config": {
                "d_model": 32,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 48,
                "num_mel_bins": 16,
                "downsample_hidden_size": 6,
                "output_dim": 64,
                "n_window_infer": 200,
            },
            "audio_token_id": FIRST_TOKEN,
            **dict.fromkeys(("pad_token_id", "eos_token_id"), 256),
        },
        tokens=("<|audio_pad|>",),
        marker="<|audio_pad|>",
        inputs=features,
        expanded=lambda samples: "<|audio_pad|>" * rows(samples),
        tensor=lambda samples: ("frames", features([samples])["input_features"][0].T[: max(len(samples), 2000) // 160]),
        prepare=lambda folder: _qwen3_extractor().save_pretrained(folder),
        seconds=(0.6, 2.45, 1.1),
    )


def _qwen3_extractor() -> Any:
    from transformers.models.qwen3_asr.feature_extraction_qwen3_asr import Qwen3ASRFeatureExtractor

    return Qwen3ASRFeatureExtractor(feature_size=16, min_length=2000)


def families() -> Mapping[str, SoundFamily]:
    """By name."""
    return {"granite-speech": _granite_speech(), "qwen3-asr": _qwen3_asr(), **window_families()}
