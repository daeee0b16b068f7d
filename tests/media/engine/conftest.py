"""A model that takes points, and what transformers computes from their embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from engine_rig import rig_of
from points_rig import cloud, points_folder, points_registry, prompt_of
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from quire.records import Registry
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt
from quire_testing.tiny import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return points_folder(tmp_path_factory.mktemp("points"))


@pytest.fixture(scope="module")
def found() -> Registry:
    return points_registry()


@pytest.fixture(scope="module")
def reference(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, nn.Linear]:
    tensors = load_file(folder / "model.safetensors")
    linear = nn.Linear(3, 64)
    linear.load_state_dict({name: tensors.pop(f"point_embed.{name}") for name in ("weight", "bias")})
    plain = tiny_llama(tmp_path_factory.mktemp("plain"))
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    return LlamaForCausalLM.from_pretrained(plain, dtype=torch.float32).eval(), linear


@pytest.fixture(scope="module")
def inputs(folder: Path, found: Registry) -> Iterator[MultimodalProcessor]:
    with rig_of(folder, found) as rig:
        yield MultimodalProcessor(found, rig.engine.info, Tokenizer.load(folder))


@pytest.fixture(scope="module")
def prompts(inputs: MultimodalProcessor, folder: Path) -> list[Prompt]:
    """Media at the begin, at the end, side by side, longer than a page, a chunk; and none."""
    texts: list[tuple[str, Sequence[Tensor]]] = [
        ("What is <points>? ", [cloud(1, 5)]),
        ("<points> and <points> differ", [cloud(2, 9), cloud(3, 30)]),
        ("<points><points>", [cloud(4, 3), cloud(5, 2)]),
        ("no points at all, but a text of some length", []),
        ("a b c d <points>", [cloud(6, 1)]),
    ]
    return [prompt_of(inputs, folder, text, *clouds) for text, clouds in texts]
