"""Gemma 4, of `test_picture_families`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attention_cases import GEMMA4
from llava_rig import TEXT
from picture_model import FIRST_TOKEN, LINEAR, VOCAB, Family
from PIL import Image


def _limit(model: Any) -> None:
    """Set the limits of matrices, which are infinite in a new model, and the scale of embeddings, which is not set."""
    generator = torch.Generator().manual_seed(8)
    for name, buffer in model.named_buffers():
        if name.endswith(("input_min", "output_min")):
            buffer.fill_(-1.0)
        elif name.endswith(("input_max", "output_max")):
            buffer.fill_(1.5)
        elif name.endswith(("std_bias", "std_scale")):
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)


def gemma4_family() -> Family:
    from transformers import Gemma4TextConfig, Gemma4VisionConfig

    def count(processor: Any, image: Image.Image) -> int:
        return int(processor(images=image, return_tensors="np")["num_soft_tokens_per_image"][0])

    def tensors(processor: Any, image: Image.Image) -> Mapping[str, Any]:
        made = processor(images=image, return_tensors="np")
        return {"patches": made["pixel_values"][0][: 4 * count(processor, image)]}

    def inputs(processor: Any, images: Any) -> dict[str, Any]:
        made = processor(images=list(images), return_tensors="pt")
        return {name: made[name] for name in ("pixel_values", "image_position_ids")}

    return Family(
        architecture="Gemma4ForConditionalGeneration",
        config={
            "vision_config": Gemma4VisionConfig(
                hidden_size=48,
                intermediate_size=80,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                head_dim=12,
                patch_size=4,
                pooling_kernel_size=2,
                position_embedding_size=80,
                use_clipped_linears=True,
                standardize=True,
            ),
            "text_config": Gemma4TextConfig(**{**TEXT, **GEMMA4, "vocab_size": VOCAB}),
            "image_token_id": FIRST_TOKEN,
            "boi_token_id": FIRST_TOKEN + 1,
            "eoi_token_id": FIRST_TOKEN + 2,
            "video_token_id": FIRST_TOKEN + 3,
            "audio_token_id": FIRST_TOKEN + 4,
        },
        processor="Gemma4ImageProcessorPil",
        processing={"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70},
        tokens=("<|image|>", "<|image>", "<image|>", "<|video|>", "<|audio|>"),
        marker="<|image|>",
        expanded=lambda processor, image: f"<|image>{'<|image|>' * count(processor, image)}<image|>",
        tensors=tensors,
        inputs=inputs,
        lora=rf"(?!.*vision_tower)({LINEAR})|.*vision_tower.*_proj\.linear|.*embedding_projection",
        scale=0.1,
        change=_limit,
    )
