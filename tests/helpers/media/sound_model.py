"""Tiny random models that hear, in Hugging Face format, and what transformers and peft make of prompts with sounds."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from lora_rig import randomize_adapter
from media_checks import Question
from numpy.typing import NDArray
from qwen_audio_rig import sound
from torch import Tensor

from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt
from quire_testing.tiny import byte_tokenizer, reference_model, save

FIRST_TOKEN = 260
"""The id of the first of `SoundFamily.tokens`."""

RATE = 16_000

READING = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class SoundFamily:
    """A model to make. tokens: added to the tokenizer, from id FIRST_TOKEN on.

    inputs: what transformers' model takes for the sounds of a prompt, from float32 [samples] of each at 16 kHz, all
    equally long. expanded: the text in place of a sound's marker. tensor: the name and values of the tensor that
    Quire's mapper makes of one sound. files: JSON files of the folder; prepare: writes others. lora: modules that peft
    adapts. own: folders, within the model's, of adapters for prompts with a modality. seconds: length of the sounds,
    of which the last is in the longest question.
    """

    architecture: str
    config: Mapping[str, Any]
    tokens: Sequence[str]
    marker: str
    inputs: Callable[[Sequence[Samples]], dict[str, Tensor]]
    expanded: Callable[[Samples], str]
    tensor: Callable[[Samples], tuple[str, Tensor]]
    files: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Path], object] = lambda folder: None
    lora: str = READING
    own: Mapping[str, str] = field(default_factory=dict)
    seconds: Sequence[float] = (0.6, 1.3, 0.31)
    settings: Mapping[str, Any] = field(default_factory=dict)


class SoundModel:
    """A tiny model in a folder, with a LoRA adapter: a `media_checks.MediaModel`."""

    least_step = 1

    def __init__(self, folder: Path, family: SoundFamily) -> None:
        self.folder, self.family, self.adapter = folder / "model", family, folder / "adapter"
        self.settings = family.settings
        self.reference = reference_model(family.architecture, **family.config)
        _randomize_statistics(self.reference)
        save(self.reference, self.folder)
        byte_tokenizer(self.folder)
        made = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        made.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in family.tokens])
        made.save(str(self.folder / "tokenizer.json"))
        for name, content in family.files.items():
            (self.folder / name).write_text(json.dumps(content))
        family.prepare(self.folder)
        self.tokenizer = Tokenizer.load(self.folder)
        self.adapted = self._with_adapter(family.lora, 4, self.adapter)
        self.own = {
            modality: self._with_adapter(family.lora, rank, self.folder / place)
            for rank, (modality, place) in enumerate(family.own.items(), 5)
        }

    def _with_adapter(self, modules: str, rank: int, folder: Path) -> Any:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=modules)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = get_peft_model(copy.deepcopy(self.reference), config)
            randomize_adapter(adapted, like=0.5 + rank / 20)
            adapted.save_pretrained(folder)
        return adapted.eval()

    @property
    def questions(self) -> list[Question]:
        """No sound, one, several; of different lengths; at the start, in the middle and at the end."""
        first, second, third = self.family.seconds
        mark = self.family.marker
        return [
            Question("no sound, but a text"),
            Question(f"{mark}first of all sounds", {"audio": [sound(1, first)]}),
            Question(f"what is at the end? {mark}", {"audio": [sound(2, second)]}),
            Question(
                f"this {mark} and {mark}, again {mark}.",
                {"audio": [sound(3, third), sound(4, third), sound(3, third)]},
            ),
        ]

    @property
    def later(self) -> list[Question]:
        """The first question about a sound with another end, and with another sound of the same length."""
        seconds, mark = self.family.seconds[0], self.family.marker
        return [
            Question(f"{mark}first of none, then more", {"audio": [sound(1, seconds)]}),
            Question(f"{mark}first of all sounds", {"audio": [sound(9, seconds)]}),
        ]

    def check_inputs(self, prompts: Sequence[Prompt]) -> None:
        """Compares the ids of all prompts, and the tensor of each sound."""
        for prompt, question in zip(prompts, self.questions, strict=True):
            sounds = _samples(question)
            assert list(prompt.token_ids) == self._expected_ids(question.text, sounds), question.text
        for medium, samples in zip(prompts[-1].media, _samples(self.questions[-1]), strict=False):
            name, wanted = self.family.tensor(samples)
            torch.testing.assert_close(torch.as_tensor(medium.tensors[name]), wanted, atol=1e-5, rtol=1e-5)

    def _expected_ids(self, text: str, sounds: Sequence[Samples]) -> list[int]:
        """The ids of the prompt by transformers' rules."""
        parts, remaining = re.split(f"({re.escape(self.family.marker)})", text), iter(sounds)
        expanded = [self.family.expanded(next(remaining)) if i % 2 else part for i, part in enumerate(parts)]
        return self.tokenizer.encode("".join(expanded), add_special_tokens=True)

    @torch.inference_mode()
    def logits(self, prompt: Prompt, answer: Sequence[int], question: Question, adapted: bool) -> Tensor:
        """[tokens, vocab] by transformers, of a prompt and an answer; with sounds by the model's own adapter.

        Without an answer, always by the base model, whose logits the checks compare first.
        """
        sounds = _samples(question)
        inputs = self.family.inputs(sounds) if sounds else {}
        return self.computed(prompt, answer, inputs, self.adapted if adapted else self.of_modality(question, answer))

    def of_modality(self, question: Question, answer: Sequence[int]) -> Any:
        """The model with its own adapter for what the question has; the base without an answer."""
        own = [model for modality, model in self.own.items() if modality in question.media]
        return own[0] if own and answer else self.reference

    def computed(self, prompt: Prompt, answer: Sequence[int], inputs: Mapping[str, Any], model: Any) -> Tensor:
        """[tokens, vocab] of the prompt and the answer."""
        ids = torch.tensor([[*prompt.token_ids, *answer]])
        found: Tensor = model(input_ids=ids, **inputs, use_cache=False).logits[0]
        return found


def _samples(question: Question) -> list[Samples]:
    return [one.resample(RATE) for one in question.media.get("audio", ())]


def _randomize_statistics(model: Any) -> None:
    """Batch norms begin as identities, which would hide mistakes."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, value in model.named_buffers():
            if name.endswith(("running_mean", "global_mean")):
                value.copy_(0.2 * torch.randn(value.shape, generator=generator))
            elif name.endswith(("running_var", "global_invstd")):
                value.copy_(0.5 + torch.rand(value.shape, generator=generator))
