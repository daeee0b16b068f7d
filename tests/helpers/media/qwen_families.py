"""Qwen3-VL and Qwen3.5, of `test_picture_families`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from hybrid_cases import BOTH, DELTA, EXPERTS, OFTEN, STACKED
from llava_rig import TEXT
from picture_model import FIRST_TOKEN, LINEAR, VOCAB, Family
from PIL import Image

ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
PARTLY_ROTARY = {**ROPE, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_heads": 4,
    "patch_size": 4,
    "out_hidden_size": 64,
    "num_position_embeddings": 25,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 10_000.0},
}


def _family(kind: str, text: Mapping[str, Any], vision: Mapping[str, Any], **options: Any) -> Family:
    """kind: as the names of transformers' classes begin."""

    def squares(processor: Any, image: Image.Image) -> int:
        made = processor(images=image, return_tensors="np")
        return int(made["image_grid_thw"].prod() // 4)

    def tensors(processor: Any, image: Image.Image) -> Mapping[str, Any]:
        made = processor(images=image, return_tensors="np")
        patches = made["pixel_values"]
        return {"patches": patches.reshape(len(patches), 3, 2, 16)[:, :, :1], "grid": made["image_grid_thw"][0]}

    def types(prompt: Any, count: int) -> dict[str, Any]:
        pictures = (prompt == FIRST_TOKEN).long()
        return {"mm_token_type_ids": torch.cat([pictures, pictures.new_zeros(1, count)], 1)}

    return Family(
        architecture=f"{kind}ForConditionalGeneration",
        config={
            "vision_config": getattr(transformers, f"{kind}VisionConfig")(**SIZES, **vision),
            "text_config": getattr(transformers, f"{kind}TextConfig")(**{**TEXT, "vocab_size": VOCAB, **text}),
            "image_token_id": FIRST_TOKEN,
            "video_token_id": FIRST_TOKEN + 1,
            "vision_start_token_id": FIRST_TOKEN + 2,
            "vision_end_token_id": FIRST_TOKEN + 3,
            "tie_word_embeddings": False,
        },
        processor="Qwen2VLImageProcessorPil",
        processing={
            "size": {"shortest_edge": 256, "longest_edge": 1024},
            "patch_size": 4,
            "temporal_patch_size": 2,
            "merge_size": 2,
        },
        tokens=("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
        marker="<|image_pad|>",
        expanded=lambda processor, image: "<|image_pad|>" * squares(processor, image),
        tensors=tensors,
        types=types,
        **options,
    )


def qwen_families() -> Mapping[str, Family]:
    """By name."""
    stack = {"depth": 3, "deepstack_visual_indexes": [0, 2]}
    delta = rf"{LINEAR}|.*\.in_proj_(qkv|z|b|a)"
    return {
        "qwen3-vl": _family("Qwen3VL", {"rope_parameters": ROPE}, stack),
        "qwen3-vl, experts": _family("Qwen3VLMoe", {**EXPERTS, "rope_parameters": ROPE}, stack, lora_options=STACKED),
        # sums of delta nets round differently: without a scale, logits up to 100 tokens later differ by up to 1.2e-4
        "qwen3.5": _family(
            "Qwen3_5",
            {**DELTA, **BOTH, "rope_parameters": PARTLY_ROTARY},
            {"depth": 2},
            lora=delta,
            settings=OFTEN,
            head_scale=0.5,
        ),
        "qwen3.5, experts": _family(
            "Qwen3_5Moe",
            {**DELTA, **BOTH, **EXPERTS, "shared_expert_intermediate_size": 48, "rope_parameters": PARTLY_ROTARY},
            {"depth": 2},
            lora=delta,
            lora_options=STACKED,
            settings=OFTEN,
            head_scale=0.5,
        ),
    }
