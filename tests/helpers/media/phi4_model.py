"""A tiny random Phi-4 multimodal, which sees and hears, with a LoRA for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llava_rig import TEXT, picture
from media_checks import Question
from qwen_audio_rig import sound
from sound_families import PATIENT
from sound_model import FIRST_TOKEN, RATE, Samples, SoundFamily, SoundModel
from torch import Tensor

from quire.types import Prompt

IMAGE, AUDIO = FIRST_TOKEN, FIRST_TOKEN + 1
CROP, PATCH, MELS = 28, 7, 16
SIDE = CROP // PATCH


def _extractor() -> Any:
    from transformers import Phi4MultimodalFeatureExtractor

    return Phi4MultimodalFeatureExtractor(feature_size=MELS)


def _heard(samples: Samples) -> Tensor:
    made: Tensor = _extractor()(samples, sampling_rate=RATE, return_tensors="pt")["audio_input_features"][0]
    return made


def _config() -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
    return {
        **TEXT,
        "rope_parameters": rope,
        "vision_config": {
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": CROP,
            "patch_size": PATCH,
            "crop_size": CROP,
            "image_token_id": IMAGE,
        },
        "audio_config": {
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_blocks": 2,
            "num_attention_heads": 4,
            "ext_pw_out_channel": 32,
            "depthwise_separable_out_channel": 32,
            "input_size": MELS,
            "nemo_conv_channels": 12,
            "bias_max_distance": 6,
            "audio_token_id": AUDIO,
        },
        "tie_word_embeddings": False,
    }


def family() -> SoundFamily:
    """The config, and the rules for audio."""
    return SoundFamily(
        architecture="Phi4MultimodalForCausalLM",
        config=_config(),
        tokens=("<|image|>", "<|audio|>"),
        marker="<|audio|>",
        inputs=lambda sounds: {
            "audio_input_features": torch.stack([_heard(one) for one in sounds]),
            "audio_embed_sizes": torch.tensor([-(-len(_heard(one)) // 8) for one in sounds]),
        },
        expanded=lambda samples: "<|audio|>" * -(-len(_heard(samples)) // 8),
        tensor=lambda samples: ("frames", _heard(samples)),
        files={"preprocessor_config.json": {"feature_size": MELS, "dynamic_hd": 4}},
        lora=r".*model\.layers.*\.(qkv_proj|o_proj|gate_up_proj|down_proj)",
        own={"image": "vision-lora", "audio": "speech-lora"},
        settings=PATIENT,
    )


class Phi4Model(SoundModel):
    """A `media_checks.MediaModel` whose questions have images, audio and both."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, family())

    @property
    def questions(self) -> list[Question]:
        sounds, pictures = [sound(1, 0.6), sound(2, 0.6)], [picture(1, 40, 30), picture(2, 20, 60), picture(3, 90, 33)]
        return [
            Question("neither a picture nor a sound"),
            Question("<|audio|> and <|audio|>?", {"audio": sounds}),
            Question("<|image|>first of all pictures", {"image": pictures[:1]}),
            Question("<|image|>, <|audio|> and <|image|>.", {"audio": sounds[:1], "image": pictures[1:]}),
        ]

    @property
    def later(self) -> list[Question]:
        return [
            Question("<|image|>first of none, then more", {"image": [picture(1, 40, 30)]}),
            Question("<|image|>first of all pictures", {"image": [picture(9, 40, 30)]}),
            Question("<|audio|> and <|audio|>, or not?", {"audio": [sound(1, 0.6), sound(2, 0.6)]}),
        ]

    def check_inputs(self, prompts: Sequence[Prompt]) -> None:
        """The frames of audio are those of transformers' extractor; the padding of images by transformers' rules."""
        heard = torch.as_tensor(prompts[1].media[0].tensors["frames"])
        torch.testing.assert_close(heard, _heard(sound(1, 0.6).resample(RATE)))
        (pictured,) = prompts[2].media  # 40 × 30 pixels: 2 × 2 crops, scaled to 56 × 42, padded below by 14
        assert pictured.tensors["grid"].tolist() == [2, 2]
        assert pictured.tensors["real"].tolist() == [[4, 4], [4, 4], [4, 4], [2, 4], [2, 4]]
        assert pictured.length == 3 * (4 + 1) + 1 + 2 * (2 + 1)
        assert (np.asarray(pictured.tensors["pixels"])[3, :, 14:] == 1).all()  # white
        grids = [medium.tensors["grid"].tolist() for medium in prompts[3].media if medium.modality == "image"]
        assert grids == [[3, 1], [1, 3]]  # the last one of more crops than allowed

    @torch.inference_mode()
    def logits(self, prompt: Prompt, answer: Sequence[int], question: Question, adapted: bool) -> Tensor:
        """[tokens, vocab] by transformers, of a prompt and an answer."""
        sounds = [one.resample(RATE) for one in question.media.get("audio", ())]
        inputs: dict[str, Any] = dict(self.family.inputs(sounds)) if sounds else {}
        seen = [medium.tensors for medium in prompt.media if medium.modality == "image"]
        if seen:
            most = max(len(one["pixels"]) for one in seen)
            inputs |= {
                "image_pixel_values": torch.stack([_filled(one["pixels"], most) for one in seen]),
                "image_sizes": torch.stack([one["grid"] * CROP for one in seen]),
                "image_attention_mask": torch.stack([_mask(one["real"], most) for one in seen]),
            }
        return self.computed(prompt, answer, inputs, self.adapted if adapted else self.of_modality(question, answer))


def _filled(crops: Tensor, most: int) -> Tensor:
    return torch.cat([crops, crops.new_zeros(most - len(crops), *crops.shape[1:])])


def _mask(real: Tensor, most: int) -> Tensor:
    """Float [crops, side, side]: 1 = a patch that is no padding."""
    at = torch.arange(SIDE)
    mask = (at < real[:, :1])[:, :, None] & (at < real[:, 1:])[:, None]
    return torch.cat([mask, mask.new_ones(most - len(mask), SIDE, SIDE)]).float()
