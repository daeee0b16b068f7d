"""Llama 4, of `test_picture_families`. Its image processor needs torchvision, so that pixels are Quire's."""

from __future__ import annotations

import json
from typing import Any

from attention_cases import LLAMA4
from llava_rig import TEXT, TILE
from picture_model import FIRST_TOKEN, VOCAB, Family
from PIL import Image

from quire_plugins.vision.llama4.inputs import Tiles

MAX_TILES, TOKENS = 4, 4
SETTINGS = {"size": {"height": TILE, "width": TILE}, "max_patches": MAX_TILES}


def tiles(**settings: Any) -> Tiles:
    """Cuts images by these settings, and otherwise the defaults."""
    return Tiles(TILE, {**SETTINGS, **settings})


def _expanded(processor: Any, image: Image.Image) -> str:
    _, (rows, columns) = tiles()(image)
    tile = "<|patch|>" * TOKENS
    lines = ["<|tile_x_separator|>".join([tile] * columns) + "<|tile_y_separator|>"] * rows
    return f"<|image_start|>{''.join(lines) if rows * columns > 1 else ''}<|image|>{tile}<|image_end|>"


def llama4_family() -> Family:
    from transformers import Llama4TextConfig, Llama4VisionConfig

    return Family(
        architecture="Llama4ForConditionalGeneration",
        config={
            "vision_config": Llama4VisionConfig(
                hidden_size=48,
                intermediate_size=192,
                num_hidden_layers=2,
                num_attention_heads=4,
                image_size=TILE,
                patch_size=7,
                projector_input_dim=40,
                projector_output_dim=40,
                vision_output_dim=40,
                rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            ),
            "text_config": Llama4TextConfig(**{**TEXT, **LLAMA4, "vocab_size": VOCAB}),
            "image_token_index": FIRST_TOKEN,
        },
        processor="",
        processing={},
        tokens=(
            *("<|patch|>", "<|image_start|>", "<|image_end|>"),
            *("<|image|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
        ),
        marker="<|image|>",
        expanded=_expanded,
        tensors=lambda processor, image: {},
        files={"preprocessor_config.json": json.dumps(SETTINGS)},
    )
