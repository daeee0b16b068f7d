"""Tiny random LLaVA models in Hugging Face format, and what transformers makes of prompts with pictures in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from quire.engine.loading.load import LoadedModel
from quire.engine.multimodal.rope_positions import RopePositions
from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt
from quire_models import MediaRows, TowerCall
from quire_models.testing import ChunkSpec, ModelDriver
from quire_testing.tiny import END_ID, VOCAB_SIZE, byte_tokenizer, reference_model, save

IMAGE, VIDEO = 262, 263
"""What stands for a picture, and a video, among token ids."""

TILE = 28
"""Pixels of a side."""

PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]

VISION: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": TILE,
    "patch_size": 7,
}

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": END_ID,
    "pad_token_id": END_ID,
}


def text_config(kind: str = "llama", **changes: Any) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[kind](**{**TEXT, **changes})


def clip_config(**changes: Any) -> Any:
    from transformers import CLIPVisionConfig

    return CLIPVisionConfig(**{**VISION, "projection_dim": 32, **changes})


def siglip_config(**changes: Any) -> Any:
    from transformers import SiglipVisionConfig

    return SiglipVisionConfig(**{**VISION, "vision_use_head": False, **changes})


def picture(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    """Smooth enough that scaling it is no noise."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@dataclass(frozen=True)
class Case:
    """A model to make: its class, and what its config has beside the usual."""

    architecture: str
    processor: str
    config: dict[str, Any] = field(default_factory=dict)
    processing: dict[str, Any] = field(default_factory=dict)


CROP = {"size": {"shortest_edge": TILE}, "crop_size": {"height": TILE, "width": TILE}}
SQUARE = {"size": {"height": TILE, "width": TILE}}


class Model:
    """A tiny model in a folder."""

    def __init__(self, folder: Path, case: Case) -> None:
        import transformers

        self.folder, self.case = folder, case
        config = {
            "text_config": text_config(),
            "vision_config": clip_config(),
            "image_token_index": IMAGE,
            **case.config,
        }
        self.reference = reference_model(case.architecture, **config)
        save(self.reference, folder)
        byte_tokenizer(folder)
        self.processor: Any = getattr(transformers, case.processor)(**case.processing)
        self.processor.save_pretrained(folder)

    def processor_of_frames(self) -> Any:
        """What scales frames of videos, without the part that cuts pictures."""
        from transformers import SiglipImageProcessorPil

        like = self.processor
        return SiglipImageProcessorPil(
            size={"height": TILE, "width": TILE}, resample=3, image_mean=like.image_mean, image_std=like.image_std
        )

    def prompt(self, found: Registry, info: ModelInfo, text: str, *pictures: Image.Image) -> Prompt:
        tokenizer = Tokenizer.load(self.folder)
        value = {"prompt": text, "multi_modal_data": {"image": list(pictures)}} if pictures else text
        return to_prompt(value, tokenizer, multimodal=MultimodalProcessor(found, info, tokenizer))

    def _inputs(self, pictures: Sequence[Image.Image]) -> dict[str, Tensor]:
        """What transformers' own processor makes of the pictures of a prompt."""
        if not pictures:
            return {}
        together = [list(pictures)] if self.case.architecture.startswith("LlavaOnevision") else list(pictures)
        return dict(self.processor(images=together, return_tensors="pt"))

    @torch.inference_mode()
    def logits(self, prompt: Prompt, *pictures: Image.Image, model: Any = None) -> Tensor:
        """[tokens, vocab] of a prompt, by transformers."""
        ids = torch.tensor([prompt.token_ids])
        logits: Tensor = (model or self.reference)(input_ids=ids, **self._inputs(pictures)).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, prompt: Prompt, *pictures: Image.Image, count: int = 32, model: Any = None) -> list[int]:
        ids = torch.tensor([prompt.token_ids])
        made = (model or self.reference).generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **self._inputs(pictures),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
        tokens: list[int] = made[0, len(prompt.token_ids) :].tolist()
        return tokens


@torch.inference_mode()
def our_logits(loaded: LoadedModel, prompt: Prompt) -> Tensor:
    """[tokens, vocab] of a prompt, computed whole."""
    module: Any = loaded.module
    driver = ModelDriver(module, loaded.decoder, [prompt.token_ids])
    forward = driver.forward([ChunkSpec(0, len(prompt.token_ids))])
    if prompt.media:
        rows = module.tower([medium.tensors for medium in prompt.media], TowerCall("cpu"))
        places = [np.arange(m.length) if m.rows_at is None else m.rows_at for m in prompt.media]
        index = torch.from_numpy(np.concatenate([m.start + at for m, at in zip(prompt.media, places, strict=True)]))
        forward.media = MediaRows(index, torch.cat(rows))
    axes = loaded.decoder.position_axes
    if axes > 1 and (ropes := RopePositions.from_media(prompt.media, len(prompt.token_ids), axes)) is not None:
        forward.rope_positions = torch.from_numpy(ropes.prompt)
    if prompt.media and loaded.decoder.bidirectional_media:
        ends = np.arange(len(prompt.token_ids), dtype=np.int32) + 1
        for medium in prompt.media:
            ends[medium.start : medium.start + medium.length] = medium.start + medium.length
        forward.rows.visible_ends, forward.rows.visible_ends_host = torch.from_numpy(ends), ends
    logits: Tensor = module.logits(module(forward))
    return logits


CASES = {
    "1.5": Case("LlavaForConditionalGeneration", "CLIPImageProcessorPil", {}, CROP),
    "1.5 on mistral, with the class token": Case(
        "LlavaForConditionalGeneration",
        "CLIPImageProcessorPil",
        {"text_config": text_config("mistral", sliding_window=9), "vision_feature_select_strategy": "full"},
        CROP,
    ),
    "1.5 on qwen2, tied, of two layers": Case(
        "LlavaForConditionalGeneration",
        "CLIPImageProcessorPil",
        {
            "text_config": text_config("qwen2"),
            "vision_feature_layer": [-3, 0],
            "tie_word_embeddings": True,
            "multimodal_projector_bias": False,
        },
        CROP,
    ),
    "1.5 with SigLIP": Case(
        "LlavaForConditionalGeneration",
        "SiglipImageProcessorPil",
        {
            "vision_config": siglip_config(image_size=30, vision_use_head=True),  # 30 = 4 patches of 7, and 2 pixels
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        {"size": {"height": 30, "width": 30}},
    ),
    "NeXT": Case(
        "LlavaNextForConditionalGeneration",
        "LlavaNextImageProcessorPil",
        {"image_grid_pinpoints": PINPOINTS},
        {**CROP, "image_grid_pinpoints": PINPOINTS},
    ),
    "OneVision": Case(
        "LlavaOnevisionForConditionalGeneration",
        "LlavaOnevisionImageProcessorPil",
        {
            "vision_config": siglip_config(),
            "text_config": text_config("qwen2"),
            "video_token_index": VIDEO,
            "image_grid_pinpoints": PINPOINTS,
            "vision_aspect_ratio": "anyres_max_1",
        },
        {**SQUARE, "image_grid_pinpoints": PINPOINTS},
    ),
}
"""By what is special about them."""

PROMPTS: list[tuple[str, list[Image.Image]]] = [
    ("no picture, but a text of some length", []),
    ("<image>", [picture(1)]),
    ("what is at the end? <image>", [picture(2, 60, 30)]),
    ("a <image> in the middle", [picture(3, 20, 90)]),
    ("<image><image>side by side", [picture(4, 31, 31), picture(5, 64, 40)]),
    ("this <image> and <image>, again <image>.", [picture(6, 100, 30), picture(1), picture(7, 9, 40)]),
]
"""None, one, several; of different sizes; at the start, in the middle and at the end."""
