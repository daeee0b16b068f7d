"""A model with three SCALE adapters and a SHIFT one, and copies with each of them merged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Answer, Rig, greedy, related_prompts, rig_of as engine_rig_of
from random_adapters import write_adapter
from safetensors.torch import load_file, save_file

from quire.types import AdapterRef, WeightedAdapter
from quire_testing.tiny import tiny_llama

PROMPT = list(b"To be or not to be")


def write_adapters(root: Path) -> dict[str, Path]:
    kinds = {"a": "SCALE", "b": "SCALE", "c": "SCALE", "s": "SHIFT"}
    return {name: write_adapter(root / name, kind, seed) for seed, (name, kind) in enumerate(kinds.items(), 1)}


def merge(folder: Path, adapters: dict[str, Path], root: Path) -> dict[str, Path]:
    """Copies of the base model, each with one adapter added to its weights."""
    made = {"base": folder}
    for name, path in adapters.items():
        copy = tiny_llama(root / name, attention_bias=name == "s")
        tensors = load_file(folder / "model.safetensors")
        for module, vector in load_file(path / "vectors.safetensors").items():
            if name == "s":
                tensors[f"{module}.bias"] = vector
                tensors.setdefault(f"{module.rpartition('.')[0]}.k_proj.bias", torch.zeros(32))
            else:
                tensors[f"{module}.weight"] *= vector[:, None]
        save_file(tensors, copy / "model.safetensors", {"format": "pt"})
        made[name] = copy
    return made


PROMPTS = related_prompts(6)
rig_of = partial(engine_rig_of, max_loras=2)


def ask(rig: Rig, prompt: Sequence[int], name: str | None, params: Any = None) -> str:
    adapters = () if name in (None, "base") else (WeightedAdapter(AdapterRef(name=str(name))),)
    return rig.add(prompt, params or greedy(8, ignore_eos=True, logprobs=0), adapters=adapters)


def load_all(rig: Rig, adapters: dict[str, Path], names: str = "abcs") -> None:
    for name in names:
        rig.engine.load_adapter(name, adapters[name])


def merged_answers(merged: dict[str, Path]) -> dict[tuple[str, int], Answer]:
    """What each merged model generates for each prompt."""
    answers = {}
    for name, path in merged.items():
        with rig_of(path) as rig:
            ids = [ask(rig, prompt, None) for prompt in PROMPTS]
            found = rig.drain()
            answers.update({(name, i): found[request_id, 0] for i, request_id in enumerate(ids)})
    return answers


def states(rig: Rig) -> dict[str, str]:
    return {info.name: info.state for info in rig.engine.adapters.infos()}


def same(answer: Answer, other: Answer) -> bool:
    close = [one.logprob for one in answer.logprobs] == pytest.approx([one.logprob for one in other.logprobs], abs=1e-4)
    return bool(answer.token_ids == other.token_ids and close)
