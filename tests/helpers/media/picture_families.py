"""The families of `test_picture_families`: tiny configs, and transformers' rules for the text around a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llava_rig import TEXT
from picture_model import FIRST_TOKEN, VOCAB, Family, text_config
from PIL import Image

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


def _qwen3_vl() -> Family:
    from transformers import Qwen3VLTextConfig, Qwen3VLVisionConfig

    def squares(processor: Any, image: Image.Image) -> int:
        made = processor(images=image, return_tensors="np")
        return int(made["image_grid_thw"].prod() // 4)

    def tensors(processor: Any, image: Image.Image) -> Mapping[str, Any]:
        made = processor(images=image, return_tensors="np")
        patches = made["pixel_values"]
        return {
            "patches": patches.reshape(len(patches), 3, 2, 16)[:, :, :1],
            "grid": made["image_grid_thw"][0],
        }

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    return Family(
        architecture="Qwen3VLForConditionalGeneration",
        config={
            "vision_config": Qwen3VLVisionConfig(
                depth=3,
                hidden_size=48,
                intermediate_size=80,
                num_heads=4,
                patch_size=4,
                out_hidden_size=64,
                num_position_embeddings=25,
                deepstack_visual_indexes=[0, 2],
                rope_parameters={"rope_type": "axial", "rope_theta": 10_000.0},
            ),
            "text_config": Qwen3VLTextConfig(**{**TEXT, "vocab_size": VOCAB, "rope_parameters": rope}),
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
        has_token_types=True,
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
        "qwen3-vl": _qwen3_vl(),
        "internvl of six billion": _internvl(
            norm_type="rms_norm", use_qk_norm=True, attention_bias=True, use_mean_pooling=True
        ),
    }
