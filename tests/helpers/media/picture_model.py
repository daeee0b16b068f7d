"""Tiny random models that see, in Hugging Face format, and what transformers and peft make of prompts with pictures."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from llava_rig import TEXT, picture
from lora_rig import randomize_adapter
from media_checks import Question
from PIL import Image
from torch import Tensor

from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt
from quire_testing.tiny import byte_tokenizer, reference_model, save

VOCAB = 288
FIRST_TOKEN = 260
"""The id of the first of `Family.tokens`."""

LINEAR = (
    r".*\.(q_proj|k_proj|v_proj|o_proj|out_proj|gate_proj|up_proj|down_proj|fc1|fc2|linear_1|linear_2|projection_layer"
    r"|attn\.qkv|attn\.proj|linear_fc1|linear_fc2)"
)
"""Linear layers of language models, towers and projectors."""

Pictures = Sequence[Image.Image]


def text_config(kind: str = "llama", **changes: Any) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[kind](**{**TEXT, "vocab_size": VOCAB, **changes})


@dataclass(frozen=True)
class Family:
    """A model to make. processor: class of transformers, "" if it has none that can be used. tokens: added to the
    tokenizer, from id FIRST_TOKEN on.

    inputs: what transformers' model takes for the pictures of a prompt, from the processor and the pictures.
    expanded: the text that transformers' processor puts in place of a picture's marker. whole: the text of a prompt
    from that in which pictures are expanded, if the processor adds something. tensors: the same name and values as in
    the item that Quire's mapper makes, from what the processor makes of one picture. types: further inputs of the model
    that say what kind each id has, from the ids of the prompt and the number of those after it. text_only: a prompt may
    have no picture. prefix: where a prompt has pictures, nothing of it is shared with other prompts. lora: modules that
    peft adapts. scale: of the embeddings, as in `FamilyCase`. head_scale: of the language head. change: sets
    weights of a new model. least_step: tokens of the longest medium, where it must be computed in one step.
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
    types: Callable[[Tensor, int], dict[str, Tensor]] = lambda prompt, count: {}
    whole: Callable[[str], str] = str
    text_only: bool = True
    prefix: bool = False
    lora: str = LINEAR
    lora_options: Mapping[str, Any] = field(default_factory=dict)
    scale: float = 1.0
    head_scale: float = 1.0
    change: Callable[[Any], None] = lambda model: None
    settings: Mapping[str, Any] = field(default_factory=dict)
    least_step: int = 1
    files: Mapping[str, str] = field(default_factory=dict)


class PictureModel:
    """A tiny model in a folder, with a LoRA adapter: a `MediaModel`."""

    def __init__(self, folder: Path, family: Family) -> None:
        import transformers

        self.folder, self.family, self.adapter = folder / "model", family, folder / "adapter"
        self.settings, self.least_step = family.settings, family.least_step
        self.reference = reference_model(family.architecture, **family.config)
        with torch.no_grad():
            self.reference.get_input_embeddings().weight.mul_(family.scale)
            self.reference.get_output_embeddings().weight.mul_(family.head_scale)
            family.change(self.reference)
        save(self.reference, self.folder)
        byte_tokenizer(self.folder)
        made = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        made.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in family.tokens])
        made.save(str(self.folder / "tokenizer.json"))
        self.processor: Any = None
        if family.processor:
            self.processor = getattr(transformers, family.processor)(**family.processing)
            self.processor.save_pretrained(self.folder)
        for name, content in family.files.items():
            (self.folder / name).write_text(content)
        self.tokenizer = Tokenizer.load(self.folder)
        self.adapted = self._with_adapter()
        self._pictures = [picture(seed, *size) for seed, size in enumerate(family.sizes, 1)]

    def _with_adapter(self) -> Any:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=4, lora_alpha=8, target_modules=self.family.lora, **self.family.lora_options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = get_peft_model(copy.deepcopy(self.reference), config)
            randomize_adapter(adapted, like=0.7)
            adapted.save_pretrained(self.adapter)
        return adapted.eval()

    @property
    def questions(self) -> list[Question]:
        """No picture, one, several; of different sizes; at the start, in the middle and at the end."""
        pictures, mark = self._pictures, self.family.marker
        return [
            *([Question("no picture, but a text")] if self.family.text_only else []),
            Question(f"{mark}the first of all pictures", {"image": [pictures[0]]}),
            Question(f"what is at the end? {mark}", {"image": [pictures[1]]}),
            Question(f"this {mark} and {mark}, again {mark}.", {"image": [pictures[2], pictures[0], pictures[3]]}),
        ]

    @property
    def later(self) -> list[Question]:
        """The first question about a picture with another end, and with another picture of the same size."""
        first, mark = self._pictures[0], self.family.marker
        return [
            *(self.questions[:1] if self.family.prefix else []),
            Question(f"{mark}the first of none, then more", {"image": [first]}),
            Question(f"{mark}the first of all pictures", {"image": [picture(9, *first.size)]}),
        ]

    def check_inputs(self, prompts: Sequence[Prompt]) -> None:
        """Compares the ids of all prompts, and the tensors of a picture."""
        for prompt, question in zip(prompts, self.questions, strict=True):
            assert list(prompt.token_ids) == self._expected_ids(question), question.text
        for name, wanted in self.family.tensors(self.processor, self._pictures[1]).items():
            np.testing.assert_array_equal(prompts[-2].media[0].tensors[name].numpy(), np.asarray(wanted))

    def _expected_ids(self, question: Question) -> list[int]:
        """The ids of the prompt by transformers' rules."""
        parts = re.split(f"({re.escape(self.family.marker)})", question.text)
        remaining = iter(question.media.get("image", ()))
        expanded = [
            self.family.expanded(self.processor, next(remaining)) if i % 2 else part for i, part in enumerate(parts)
        ]
        return self.tokenizer.encode(self.family.whole("".join(expanded)), add_special_tokens=True)

    @torch.inference_mode()
    def logits(self, prompt: Prompt, answer: Sequence[int], question: Question, adapted: bool) -> Tensor:
        """[tokens, vocab] by transformers, of a prompt and an answer."""
        inputs = self._inputs(prompt, len(answer), question)
        ids = torch.tensor([[*prompt.token_ids, *answer]])
        model = self.adapted if adapted else self.reference
        found: Tensor = model(input_ids=ids, **inputs, use_cache=False).logits[0]
        return found

    def _inputs(self, prompt: Prompt, count: int, question: Question) -> dict[str, Tensor]:
        """What transformers' model takes beside the ids of a prompt and `count` ids after it."""
        pictures = question.media.get("image", ())
        if self.processor is None:
            found = (
                {"pixel_values": torch.cat([medium.tensors["pixels"] for medium in prompt.media])} if pictures else {}
            )
        else:
            found = self.family.inputs(self.processor, pictures) if pictures else {}
        return {**found, **self.family.types(torch.tensor([prompt.token_ids]), count)}
