"""Adapters made with peft on a tiny Qwen2-Audio, and what peft makes of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from qwen_audio_rig import Model

from quire.types import AdapterRef, WeightedAdapter

HEARING = r".*audio_tower.*\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)"
PROJECTING = r".*multi_modal_projector\.linear"
READING = r".*language_model.*\.(q_proj|v_proj|o_proj|gate_proj|down_proj)"

ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"r": 4, "lora_alpha": 8, "target_modules": f"{HEARING}|{PROJECTING}|{READING}"},
    "tower": {"r": 3, "lora_alpha": 6, "target_modules": HEARING, "use_dora": True},
    "projector": {"r": 2, "lora_alpha": 4, "target_modules": PROJECTING},
    "text": {"r": 5, "lora_alpha": 10, "target_modules": READING},
}


class Kit:
    """A tiny model, and adapters for it."""

    def __init__(self, folder: Path, adapters: Iterable[str]) -> None:
        self.model = Model(folder / "base")
        self.folders = {name: self._made(folder / name, i, ADAPTERS[name]) for i, name in enumerate(adapters)}

    def _made(self, folder: Path, seed: int, settings: dict[str, Any]) -> Path:
        from peft import LoraConfig, get_peft_model

        generator = torch.Generator().manual_seed(seed)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            made = get_peft_model(self._fresh(), LoraConfig(**settings))
            for path, parameter in made.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                if "lora_magnitude" in path:
                    parameter.mul_(1 + 0.3 * noise)
                elif "lora_" in path:
                    parameter.copy_(0.7 * noise / parameter.shape[-1] ** 0.5)
            made.save_pretrained(folder)
        return folder

    def _fresh(self) -> Any:
        return type(self.model.reference).from_pretrained(
            self.model.folder, dtype=torch.float32, attn_implementation="eager"
        )

    def oracle(self, name: str) -> Any:
        """The model of transformers with an adapter at work; "": with none."""
        from peft import PeftModel

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = PeftModel.from_pretrained(self._fresh(), self.folders[name]).eval() if name else None
        return self.model.reference if found is None else found.get_base_model()


def uses(*names: str) -> tuple[WeightedAdapter, ...]:
    return tuple(WeightedAdapter(AdapterRef(name=name)) for name in names if name)
