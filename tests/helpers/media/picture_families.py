"""The families of `test_picture_families`: tiny configs, and transformers' rules for the text around a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gemma4_family import gemma4_family
from llama4_family import llama4_family
from llava_rig import siglip_config
from picture_model import FIRST_TOKEN, LINEAR, Family, text_config
from PIL import Image
from qwen_families import qwen_families

PATCH, TILE = 7, 28

PIXTRAL_TOKENS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")


def pixtral_vision() -> Any:
    from transformers import PixtralVisionConfig

    return PixtralVisionConfig(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=56,
        patch_size=PATCH,
        rope_parameters={"rope_type": "axial", "rope_theta": 100.0},
    )


def _pixtral(name: str, square: int, **config: Any) -> Family:
    size = {"height": square, "width": square}

    def one(processor: Any, image: Image.Image) -> Any:
        return processor(images=image, return_tensors="np", patch_size=size)["pixel_values"][0]

    def expanded(processor: Any, image: Image.Image) -> str:
        _, height, width = one(processor, image).shape
        lines = ["[IMG]" * (width // square)] * (height // square)
        return "[IMG_BREAK]".join(lines) + "[IMG_END]"

    return Family(
        architecture=name,
        config={
            "vision_config": pixtral_vision(),
            "image_token_index": FIRST_TOKEN,
            "vision_feature_layer": -1,
            **config,
        },
        processor="PixtralImageProcessorPil",
        processing={"size": {"longest_edge": 56}, "patch_size": {"height": PATCH, "width": PATCH}},
        tokens=PIXTRAL_TOKENS,
        marker="[IMG]",
        expanded=expanded,
        tensors=lambda processor, image: {"pixels": one(processor, image)},
        inputs=lambda processor, images: dict(processor(images=list(images), return_tensors="pt", patch_size=size)),
    )


def _idefics3(name: str, kind: str, processor: str) -> Family:
    import transformers

    vision = getattr(transformers, kind)(
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=TILE,
        patch_size=PATCH,
    )

    def expanded(processor: Any, image: Image.Image) -> str:
        made = processor(images=image, return_tensors="np", return_row_col_info=True)
        rows, columns = made["rows"][0][0], made["cols"][0][0]
        mark, around = "<image>" * 4, "<fake_token_around_image>"
        text = ""
        for row in range(rows):
            text += "".join(f"{around}<row_{row + 1}_col_{column + 1}>{mark}" for column in range(columns)) + "\n"
        return f"{text}" + "\n" * bool(rows) + f"{around}<global-img>{mark}{around}"

    def tensors(processor: Any, image: Image.Image) -> Mapping[str, Any]:
        return {"pixels": processor(images=image, return_tensors="np")["pixel_values"][0][:1]}

    return Family(
        architecture=name,
        config={
            "vision_config": vision,
            "text_config": text_config("llama"),
            "image_token_id": FIRST_TOKEN,
            "scale_factor": 2,
            "tie_word_embeddings": False,
        },
        processor=processor,
        processing={"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}},
        tokens=("<image>", "<fake_token_around_image>", "<global-img>"),
        marker="<image>",
        expanded=expanded,
        tensors=tensors,
        inputs=lambda processor, images: dict(processor(images=[list(images)], return_tensors="pt")),
    )


def _internvl(**vision: Any) -> Family:
    from transformers import InternVLVisionConfig

    def pixels(processor: Any, images: Any, kind: str) -> Any:
        return processor(images=images, return_tensors=kind, crop_to_patches=True)["pixel_values"]

    return Family(
        architecture="InternVLForConditionalGeneration",
        config={
            "vision_config": InternVLVisionConfig(
                hidden_size=48,
                intermediate_size=80,
                num_hidden_layers=2,
                num_attention_heads=4,
                image_size=TILE,
                patch_size=PATCH,
                **vision,
            ),
            "text_config": text_config("qwen2"),
            "image_token_id": FIRST_TOKEN,
            "image_seq_length": 4,
            "tie_word_embeddings": False,
        },
        processor="GotOcr2ImageProcessorPil",
        processing={"size": {"height": TILE, "width": TILE}, "max_patches": 4},
        tokens=("<IMG_CONTEXT>", "<img>", "</img>"),
        marker="<IMG_CONTEXT>",
        expanded=lambda processor, image: f"<img>{'<IMG_CONTEXT>' * 4 * len(pixels(processor, image, 'np'))}</img>",
        tensors=lambda processor, image: {"pixels": pixels(processor, image, "np")},
        inputs=lambda processor, images: {"pixel_values": pixels(processor, list(images), "pt")},
    )


def _aya() -> Family:
    """Without a scale of logits, which transformers applies only in the language model alone."""

    def pixels(processor: Any, images: Any, kind: str) -> Any:
        return processor(images=images, return_tensors=kind, crop_to_patches=True)["pixel_values"]

    def expanded(processor: Any, image: Image.Image) -> str:
        tile = "<|IMG_PATCH|>" * 4
        numbered = "".join(f"TILE_{number}{tile}" for number in range(1, len(pixels(processor, image, "np"))))
        return f"<|START_OF_IMG|>{numbered}TILE_GLOBAL{tile}<|END_OF_IMG|>"

    return Family(
        architecture="AyaVisionForConditionalGeneration",
        config={
            "vision_config": siglip_config(),
            "text_config": text_config(
                "cohere2", sliding_window=9, layer_types=["sliding_attention", "full_attention"], logit_scale=1.0
            ),
            "image_token_index": FIRST_TOKEN,
            "alignment_intermediate_size": 40,
        },
        processor="GotOcr2ImageProcessorPil",
        processing={"size": {"height": TILE, "width": TILE}, "max_patches": 4},
        tokens=("<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>"),
        marker="<image>",
        expanded=expanded,
        tensors=lambda processor, image: {"pixels": pixels(processor, image, "np")[:1]},
        inputs=lambda processor, images: {"pixel_values": pixels(processor, list(images), "pt")},
        scale=0.1,
    )


def _deepseek_vl() -> Family:
    return Family(
        architecture="DeepseekVLForConditionalGeneration",
        config={
            "vision_config": siglip_config(),
            "text_config": text_config("llama"),
            "image_token_id": FIRST_TOKEN,
            "tie_word_embeddings": False,
        },
        processor="DeepseekVLImageProcessorPil",
        processing={"size": {"height": TILE, "width": TILE}},
        tokens=("<image_placeholder>",),
        marker="<image_placeholder>",
        expanded=lambda processor, image: "<image_placeholder>" * 16,
        tensors=lambda processor, image: {"pixels": processor(images=image, return_tensors="np")["pixel_values"]},
        lora=rf"{LINEAR}|.*aligner\.linear[12]",
    )


def _gemma3() -> Family:
    """Tokens of a picture see all of it, within the window."""

    def types(prompt: Any, count: int) -> dict[str, Any]:
        pictures = (prompt == FIRST_TOKEN).long()
        return {"token_type_ids": torch.cat([pictures, pictures.new_zeros(1, count)], 1)}

    layers = ["sliding_attention", "full_attention"]
    return Family(
        architecture="Gemma3ForConditionalGeneration",
        config={
            "vision_config": siglip_config(),
            "text_config": text_config("gemma3_text", sliding_window=9, layer_types=layers, query_pre_attn_scalar=16),
            "image_token_index": FIRST_TOKEN,
            "mm_tokens_per_image": 4,
            "tie_word_embeddings": False,
        },
        processor="Gemma3ImageProcessorPil",
        processing={"size": {"height": TILE, "width": TILE}},
        tokens=("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        marker="<start_of_image>",
        expanded=lambda processor, image: f"\n\n<start_of_image>{'<image_soft_token>' * 4}<end_of_image>\n\n",
        tensors=lambda processor, image: {"pixels": processor(images=image, return_tensors="np")["pixel_values"]},
        inputs=lambda processor, images: {
            "pixel_values": processor(images=list(images), return_tensors="pt")["pixel_values"]
        },
        types=types,
        least_step=4,
    )


def _paligemma(text: Any) -> Family:
    """A prompt with its pictures is computed in one step, so that all of its tokens see each other."""

    def whole(expanded: str) -> str:
        before, found, after = expanded.rpartition("<image>")
        return f"{before}{found}<bos>{after}\n"

    def types(prompt: Any, count: int) -> dict[str, Any]:
        return {"token_type_ids": torch.tensor([[0] * prompt.shape[1] + [1] * count])}

    return Family(
        architecture="PaliGemmaForConditionalGeneration",
        config={
            "vision_config": siglip_config(),
            "text_config": text,
            "image_token_index": FIRST_TOKEN,
            "projection_dim": 64,
        },
        processor="SiglipImageProcessorPil",
        processing={"size": {"height": TILE, "width": TILE}},
        tokens=("<image>", "<bos>"),
        marker="<image>",
        expanded=lambda processor, image: "<image>" * 16,
        tensors=lambda processor, image: {"pixels": processor(images=image, return_tensors="np")["pixel_values"]},
        types=types,
        whole=whole,
        text_only=False,
        prefix=True,
        lora=rf"{LINEAR}|.*projector\.linear",
        scale=0.1,
        least_step=100,
    )


def families() -> Mapping[str, Family]:
    """By name."""
    return {
        "pixtral": _pixtral(
            "LlavaForConditionalGeneration",
            PATCH,
            text_config=text_config("mistral", sliding_window=None),
            vision_feature_select_strategy="full",
        ),
        "mistral3": _pixtral(
            "Mistral3ForConditionalGeneration",
            2 * PATCH,
            text_config=text_config("mistral", sliding_window=None),
            spatial_merge_size=2,
            tie_word_embeddings=False,
        ),
        "idefics3": _idefics3("Idefics3ForConditionalGeneration", "Idefics3VisionConfig", "Idefics3ImageProcessorPil"),
        "smolvlm": _idefics3(
            "SmolVLMForConditionalGeneration",
            "SmolVLMVisionConfig",
            "SmolVLMImageProcessorPil",
        ),
        "internvl": _internvl(use_mean_pooling=False),
        "internvl of six billion": _internvl(
            norm_type="rms_norm", use_qk_norm=True, attention_bias=True, use_mean_pooling=True
        ),
        "paligemma": _paligemma(text_config("gemma", num_key_value_heads=1)),
        "paligemma 2": _paligemma(text_config("gemma2", sliding_window=80, query_pre_attn_scalar=24)),
        "aya vision": _aya(),
        "deepseek-vl": _deepseek_vl(),
        "gemma 3": _gemma3(),
        "gemma 4": gemma4_family(),
        "llama 4": llama4_family(),
        **qwen_families(),
    }
