"""The demo LLaVA before it learns anything, and the folder of it when it has."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import (
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from models.llava_tokenizer import END, IMAGE, PAD, PATCH_SIZE, PATCHES, PICTURE_SIZE

CONTEXT = 512


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """A LLaVA 1.5 of a small CLIP tower, whose last layer is not used as in any LLaVA, and a small llama."""
    vision = CLIPVisionConfig(
        image_size=PICTURE_SIZE,
        patch_size=PATCH_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=5,
        num_attention_heads=4,
        projection_dim=128,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=PATCHES**2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=True,
        # In bfloat16 on a CPU the gradient of the plain formulation is found much faster.
        attn_implementation="eager",
    )
    model = LlavaForConditionalGeneration(config)
    embeddings = model.model.vision_tower.embeddings
    with torch.no_grad():
        embeddings.position_embedding.weight[1:] = grid_positions(PATCHES, vision.hidden_size)
        embeddings.position_embedding.weight[:1].zero_()
        # Of the size of the positions, so that neither drowns the other.
        embeddings.patch_embedding.weight.normal_(0.0, 1 / math.sqrt(3 * PATCH_SIZE**2))
    return model


def grid_positions(side: int, width: int) -> torch.Tensor:
    """Sines and cosines of row and column, to begin with, so that near patches are alike: [side * side, width]."""
    waves = math.pi / side * torch.arange(1, width // 4 + 1)
    angles = torch.arange(side)[:, None] * waves
    line = 0.5 * torch.cat([angles.sin(), angles.cos()], dim=1)
    rows, columns = line[:, None].expand(-1, side, -1), line[None].expand(side, -1, -1)
    return torch.cat([rows, columns], dim=2).flatten(0, 1)


def save_model(model: LlavaForConditionalGeneration, processor: LlavaProcessor, folder: Path) -> None:
    """Write the model as bfloat16 in Hugging Face format, with what it needs to read texts and pictures."""
    shipped = LlavaForConditionalGeneration(model.config)
    shipped.load_state_dict(model.state_dict())
    text = model.config.text_config
    shipped.generation_config = GenerationConfig(eos_token_id=text.eos_token_id, pad_token_id=text.pad_token_id)
    shipped.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    # Where image processors looked before processors had a file of their own.
    processor.image_processor.save_pretrained(folder)
