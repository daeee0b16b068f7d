"""Tiny models and adapters with virtual tokens for them, written by peft, and what peft makes of them."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from engine_rig import Answer, Rig, greedy, random_ids
from torch import Tensor

from quire.hooks import registry
from quire.types import AdapterRef, WeightedAdapter
from quire_testing.tiny import byte_tokenizer, reference_model, save

LINEAR = ["q_proj", "k_proj", "up_proj"]
KINDS: Mapping[str | None, Callable[[], Any]] = {
    "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=6, task_type="CAUSAL_LM"),
    "mlp": lambda: peft.PromptEncoderConfig(num_virtual_tokens=9, encoder_hidden_size=24, task_type="CAUSAL_LM"),
    "lstm": lambda: peft.PromptEncoderConfig(
        num_virtual_tokens=1,
        encoder_hidden_size=24,
        encoder_reparameterization_type="LSTM",
        task_type="CAUSAL_LM",
    ),
    "prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=6, task_type="CAUSAL_LM"),
    "projected": lambda: peft.PrefixTuningConfig(
        num_virtual_tokens=9, prefix_projection=True, encoder_hidden_size=24, task_type="CAUSAL_LM"
    ),
    "lora": lambda: peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"),
}
"""Adapters by kind; one of each number of tokens fills whole pages of three tokens, the others do not."""

ROWS = ("prompt", "mlp", "lstm")
"""Kinds that put embeddings before a prompt."""

FOUND = registry.load(None, enable_lora=True)


class World:
    """A tiny model in a folder, adapters of these kinds for it, and peft's models with them."""

    def __init__(self, root: Path, architecture: str, kinds: Sequence[str], **config: Any) -> None:
        self.folder, self.paths = root / "model", {kind: root / kind for kind in kinds}
        self.models: dict[str | None, Any] = {None: reference_model(architecture, **config)}
        save(self.models[None], self.folder)
        byte_tokenizer(self.folder)
        for kind, path in self.paths.items():
            self.models[kind] = _adapted(copy.deepcopy(self.models[None]), KINDS[kind](), path)

    def load(self, rig: Rig) -> None:
        for kind, path in self.paths.items():
            rig.engine.load_adapter(kind, path)

    @torch.inference_mode()
    def logits(self, kind: str | None, tokens: Sequence[int]) -> Tensor:
        """Of the tokens alone, [tokens, vocab]."""
        found: Tensor = self.models[kind](input_ids=torch.tensor([list(tokens)])).logits[0]
        return found[-len(tokens) :]

    @torch.inference_mode()
    def generated(self, kind: str | None, tokens: Sequence[int], count: int) -> list[int]:
        """What `generate` says after the tokens."""
        ids = torch.tensor([list(tokens)])
        settings = {"do_sample": False, "max_new_tokens": count, "eos_token_id": None, "pad_token_id": 0}
        made: Tensor = self.models[kind].generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)
        return made[0, len(tokens) :].tolist()

    def check_greedy(self, kind: str | None, prompt: Sequence[int], found: Sequence[int]) -> None:
        """Each token is the most likely one by peft."""
        logits = self.logits(kind, [*prompt, *found])[len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(found), kind


def _adapted(model: Any, config: Any, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not hasattr(model, "prepare_inputs_for_generation") or not model.can_generate():
            config.task_type = "FEATURE_EXTRACTION"
        adapted = peft.get_peft_model(model, config)
        generator = torch.Generator().manual_seed(len(folder.name))
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "prompt_encoder" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
        adapted.save_pretrained(folder)
    return adapted.eval()


def using(kind: str | None, weight: float = 1.0) -> tuple[WeightedAdapter, ...]:
    """The adapters of a request."""
    return () if kind is None else (WeightedAdapter(AdapterRef(name=kind), weight),)


def prompts_of(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [random_ids(rng, rng.randrange(1, 30)) for _ in range(count)]


def answer(rig: Rig, kind: str | None, prompt: Sequence[int], params: Any = None, **request: Any) -> list[Answer]:
    """The answers to one request alone."""
    rig.add(prompt, params or greedy(8, ignore_eos=True), adapters=using(kind), **request)
    answers = rig.drain()
    return [answers[key] for key in sorted(answers)]
