"""Tiny random models that see, in Hugging Face format, and what transformers and peft make of prompts with pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from llava_adapted import Kit
from llava_rig import TEXT, picture
from PIL import Image
from torch import Tensor

from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt
from quire_testing.tiny import byte_tokenizer, reference_model, save

VOCAB = 288
FIRST_TOKEN = 260
"""The id of the first of `Family.tokens`."""

READING = r".*(language_model|text_model).*\.(q_proj|v_proj|o_proj|gate_proj|down_proj)"

Pictures = Sequence[Image.Image]


def text_config(kind: str = "llama", **changes: Any) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[kind](**{**TEXT, "vocab_size": VOCAB, **changes})


@dataclass(frozen=True)
class Family:
    """A model to make. tokens: added to the tokenizer, from id FIRST_TOKEN on.

    inputs: what transformers' model takes for the pictures of a prompt, from the processor and the pictures.
    expanded: the text that transformers' processor puts in place of a picture's marker. tensors: the same name and
    values as in the item that Quire's mapper makes, from what the processor makes of one picture. has_token_types: the
    model takes the type of each id: picture or text.
    """

    architecture: str
    config: Mapping[str, Any]
    processor: str
    processing: Mapping[str, Any]
    tokens: Sequence[str]
    marker: str
    expanded: Callable[[Any, Image.Image], str]
    tensors: Callable[[Any, Image.Image], Mapping[str, Any]]
    inputs: Callable[[Any, Pictures], dict[str, Tensor]] = lambda processor, pictures: dict(
        processor(images=list(pictures), return_tensors="pt")
    )
    sizes: Sequence[tuple[int, int]] = ((40, 30), (60, 30), (20, 90), (31, 31))
    has_token_types: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


class PictureModel:
    """A tiny model in a folder, with a LoRA adapter."""

    def __init__(self, folder: Path, family: Family) -> None:
        import transformers

        self.folder, self.family = folder, family
        self.reference = reference_model(family.architecture, **family.config)
        save(self.reference, folder)
        byte_tokenizer(folder)
        made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        made.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in family.tokens])
        made.save(str(folder / "tokenizer.json"))
        self.processor: Any = getattr(transformers, family.processor)(**family.processing)
        self.processor.save_pretrained(folder)
        for name, content in family.files.items():
            (folder / name).write_text(content)
        self.tokenizer = Tokenizer.load(folder)
        self.kit = Kit(folder, self, {"text": {"r": 4, "lora_alpha": 8, "target_modules": READING}})

    @property
    def prompts(self) -> list[tuple[str, list[Image.Image]]]:
        """None, one, several; of different sizes; at the start, in the middle and at the end."""
        pictures = [picture(seed, *size) for seed, size in enumerate(self.family.sizes, 1)]
        mark = self.family.marker
        # given types, transformers places what it generates directly after a picture wrongly
        end = "." if self.family.has_token_types else ""
        return [
            ("no picture, but a text", []),
            (f"{mark}first", [pictures[0]]),
            (f"what is at the end? {mark}{end}", [pictures[1]]),
            (f"this {mark} and {mark}, again {mark}.", [pictures[2], pictures[0], pictures[3]]),
        ]

    def prompt(self, found: Registry, info: ModelInfo, text: str, *pictures: Image.Image) -> Prompt:
        value = {"prompt": text, "multi_modal_data": {"image": list(pictures)}} if pictures else text
        return to_prompt(value, self.tokenizer, multimodal=MultimodalProcessor(found, info, self.tokenizer))

    def expected_ids(self, text: str, *pictures: Image.Image) -> list[int]:
        """The ids of the prompt by transformers' rules."""
        parts = re.split(f"({re.escape(self.family.marker)})", text)
        remaining = iter(pictures)
        expanded = [
            self.family.expanded(self.processor, next(remaining)) if i % 2 else part for i, part in enumerate(parts)
        ]
        return self.tokenizer.encode("".join(expanded), add_special_tokens=True)

    def _inputs(self, ids: Tensor, pictures: Pictures) -> dict[str, Tensor]:
        found = self.family.inputs(self.processor, pictures) if pictures else {}
        if self.family.has_token_types:
            found["mm_token_type_ids"] = (ids == FIRST_TOKEN).long()
        return found

    @torch.inference_mode()
    def logits(self, prompt: Prompt, *pictures: Image.Image) -> Tensor:
        """[tokens, vocab] of a prompt, by transformers."""
        ids = torch.tensor([prompt.token_ids])
        logits: Tensor = self.reference(input_ids=ids, **self._inputs(ids, pictures), use_cache=False).logits[0]
        return logits

    @cache  # noqa: B019 - as long as the model
    def oracle(self, name: str) -> Any:
        return self.kit.oracle(name)

    @torch.inference_mode()
    def greedy(self, prompt: Prompt, *pictures: Image.Image, adapter: str = "", count: int = 16) -> list[int]:
        ids = torch.tensor([prompt.token_ids])
        made = self.oracle(adapter).generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **self._inputs(ids, pictures),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
        tokens: list[int] = made[0, len(prompt.token_ids) :].tolist()
        return tokens
