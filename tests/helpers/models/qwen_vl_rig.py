"""Tiny models of Qwen2-VL and Qwen2.5-VL, and what transformers makes of prompts with pictures and videos."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_rig import Rig, greedy, rig_of
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt
from quire_testing.tiny import END_ID, VOCAB_SIZE, byte_tokenizer, reference_model, save

TWO, TWO_AND_A_HALF = "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"
PICTURE_ID, VIDEO_ID = 260, 261
SETTINGS = {"min_pixels": 64, "max_pixels": 2304, "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}

TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": END_ID,
    "bos_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}
VISION: dict[str, dict[str, Any]] = {
    TWO: {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4},
    TWO_AND_A_HALF: {
        "depth": 3,
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 4,
        "window_size": 16,
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    },
}
SPECIAL = {"image_token_id": PICTURE_ID, "video_token_id": VIDEO_ID, "vision_start_token_id": 262}


@dataclass(frozen=True)
class Tiny:
    """A model as transformers has it, and where it lies."""

    model: Any
    folder: Path


def tiny(architecture: str, folder: Path, tied: bool = False, **text: Any) -> Tiny:
    parts = {"text_config": {**TEXT, **text}, "vision_config": VISION[architecture]}
    model = reference_model(architecture, **parts, **SPECIAL, vision_end_token_id=263, tie_word_embeddings=tied)
    save(model, folder)
    byte_tokenizer(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    return Tiny(model, folder)


def picture(seed: int, height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def film(seed: int, frames: int, height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Asked:
    """A prompt: its text with markers, and its media in order."""

    text: str
    pictures: Sequence[Image.Image] = ()
    films: Sequence[NDArray[np.uint8]] = ()
    known: dict[Any, Any] = field(default_factory=dict)

    @property
    def value(self) -> dict[str, Any]:
        """As `LLM.generate` takes it."""
        return {"prompt": self.text, "multi_modal_data": {"image": list(self.pictures), "video": list(self.films)}}


def inputs_of(asked: Asked) -> dict[str, Tensor]:
    """As the models of transformers take it."""
    processor = Qwen2VLImageProcessorPil(**SETTINGS)
    found: dict[str, Any] = {}
    pictures: Any = {"image_grid_thw": []}
    if asked.pictures:
        pictures = processor(images=list(asked.pictures), return_tensors="pt")
        found |= pictures
    films = [_cut(frames, processor) for frames in asked.films]
    if films:
        found["pixel_values_videos"] = torch.cat([patches for patches, _ in films])
        found["video_grid_thw"] = torch.tensor([grid for _, grid in films])
    counts = {
        "<|image_pad|>": iter([int(grid.prod()) // 4 for grid in pictures["image_grid_thw"]]),
        "<|video_pad|>": iter([int(np.prod(grid)) // 4 for _, grid in films]),
    }
    ids: list[int] = []
    for piece in re.split(r"(<\|image_pad\|>|<\|video_pad\|>)", asked.text):
        placeholder = PICTURE_ID if piece == "<|image_pad|>" else VIDEO_ID
        ids += [placeholder] * next(counts[piece]) if piece in counts else list(piece.encode())
    found["input_ids"] = torch.tensor([ids])
    kinds = found["input_ids"]
    found["mm_token_type_ids"] = (kinds == PICTURE_ID).int() + 2 * (kinds == VIDEO_ID).int()
    return found


def _cut(frames: NDArray[np.uint8], processor: Any) -> tuple[Tensor, list[int]]:
    """What the video processor of transformers, which needs torchvision, makes of frames that need no resizing."""
    if len(frames) % 2:
        frames = np.concatenate([frames, frames[-1:]])
    mean, std = torch.tensor(processor.image_mean), torch.tensor(processor.image_std)
    pixels = ((torch.from_numpy(frames).float() / 255 - mean) / std).permute(0, 3, 1, 2)
    count, channels, height, width = pixels.shape
    grid = [count // 2, height // 4, width // 4]
    squares = pixels.reshape(grid[0], 2, channels, grid[1] // 2, 2, 4, grid[2] // 2, 2, 4)
    return squares.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, channels * 2 * 16), grid


@torch.inference_mode()
def expected(tiny: Tiny, asked: Asked, length: int = 32) -> tuple[list[int], Tensor]:
    """Greedy tokens, and log-probabilities after each token of prompt and answer: [prompt + length - 1, vocab]."""
    if (tiny.folder, length) not in asked.known:
        tokens: list[int] = []
        logits = []
        for some in _steps(tiny.model, inputs_of(asked), tokens):
            logits.append(some)
            tokens.append(int(some[-1].argmax()))
            if len(tokens) == length:
                break
        asked.known[tiny.folder, length] = tokens, torch.cat(logits).log_softmax(-1)
    found: tuple[list[int], Tensor] = asked.known[tiny.folder, length]
    return found


@torch.inference_mode()
def logprobs_of(tiny: Tiny, asked: Asked, answer: Sequence[int]) -> list[float]:
    """Of each token of an answer."""
    steps = _steps(tiny.model, inputs_of(asked), answer)
    return [float(next(steps)[-1].log_softmax(-1)[token]) for token in answer]


def _steps(model: Any, inputs: dict[str, Tensor], answer: Sequence[int]) -> Iterator[Tensor]:
    """Logits [tokens, vocab] of the prompt, then those of each token of the answer.

    Not by `generate`: after a prompt that ends in a picture it goes on from the picture's last corner, axis by axis,
    where the model itself, like those who trained it, goes on beyond the largest position.
    """
    if "video_grid_thw" in inputs and "second_per_grid_ts" in signature(model.model.forward).parameters:
        inputs["second_per_grid_ts"] = torch.ones(len(inputs["video_grid_thw"]))
    model.model.rope_deltas = None  # that of the prompt before, which a text without pictures would be given
    step = model(**inputs, use_cache=True)
    yield step.logits[0]
    for at in count():
        step = model(input_ids=torch.tensor([[answer[at]]]), past_key_values=step.past_key_values)
        yield step.logits[0]


ASKED = {
    "none": Asked("a text without any pictures in it"),
    "one": Asked("What is <|image_pad|>?", [picture(1, 24, 40)]),
    "several": Asked(
        "a <|image_pad|> b <|image_pad|>, <|image_pad|>.", [picture(2, 8, 8), picture(3, 48, 32), picture(4, 20, 91)]
    ),
    "start": Asked("<|image_pad|> stands first", [picture(5, 32, 32)]),
    "end": Asked("the last is <|image_pad|>", [picture(12, 40, 24)]),
    "video": Asked("see <|video_pad|> move", (), [film(7, 6, 48, 40)]),
    "odd video": Asked("<|video_pad|>, three frames", (), [film(8, 3, 24, 16)]),
    "both": Asked(
        "<|image_pad|> or <|video_pad|> or <|image_pad|>",
        [picture(9, 16, 48), picture(1, 24, 40)],
        [film(2, 4, 32, 24)],
    ),
}


class Kit:
    """One of the models, and prompts as the engine takes them."""

    def __init__(self, made: Tiny, found: Registry) -> None:
        self.tiny, self.folder, self.found = made, made.folder, found
        self._tokenizer = Tokenizer.load(made.folder)
        self.architecture = type(made.model).__name__
        self.timed = self.architecture == TWO_AND_A_HALF
        with rig_of(made.folder, found) as rig:
            self.inputs = MultimodalProcessor(found, rig.engine.info, self._tokenizer)

    def prompt(self, asked: Asked) -> Prompt:
        return to_prompt(asked.value, self._tokenizer, multimodal=self.inputs)

    def tokens(self, rig: Rig, asked: Sequence[Asked], params: Any = None) -> list[list[int]]:
        ids = [rig.add(self.prompt(one), params or greedy(32, ignore_eos=True)) for one in asked]
        answers = rig.drain()
        for request_id in ids:
            assert answers[request_id, 0].last.finish_reason == "length", answers[request_id, 0].last
        return [answers[request_id, 0].token_ids for request_id in ids]

    def expected(self, asked: Sequence[Asked]) -> list[list[int]]:
        return [expected(self.tiny, one)[0] for one in asked]
