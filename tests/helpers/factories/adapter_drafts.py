"""Folders of LoRA adapters that a test changes in one place before they are written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_rig import Ours
from safetensors.torch import save_file
from torch import Tensor

from quire.errors import BadRequest

Q = "base_model.model.model.layers.0.self_attn.q_proj"


UP = "base_model.model.model.layers.1.mlp.up_proj"


CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj", "embed_tokens"]}


def tensors() -> dict[str, Tensor]:
    """A small adapter that is good."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        f"{Q}.lora_A.weight": (4, 64),
        f"{Q}.lora_B.weight": (64, 4),
        f"{UP}.lora_A.weight": (4, 64),
        f"{UP}.lora_B.weight": (96, 4),
    }
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@dataclass
class Draft:
    """An adapter that is about to be spoilt."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / "adapter_config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, folder / "adapter_model.safetensors")
        return folder


def draft() -> Draft:
    return Draft(dict(CONFIG), tensors())


def refused(ours: Ours, folder: Path) -> str:
    """The message of the refusal; the adapter must not have acquired a slot."""
    slots = ours.lora.slots
    with pytest.raises(BadRequest) as found:
        ours.lora.load("x", folder)
    assert found.value.param == "lora_path"
    assert ours.lora.slots == slots
    return found.value.message
