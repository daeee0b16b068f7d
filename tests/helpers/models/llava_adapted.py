"""Adapters made with peft on tiny models that see, and what peft makes of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quire.types import AdapterRef, WeightedAdapter

SEEING = r".*vision_tower.*\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)"
PROJECTING = r".*multi_modal_projector\.linear_[12]"
READING = r".*language_model.*\.(q_proj|v_proj|o_proj|gate_proj|down_proj)"

ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"r": 4, "lora_alpha": 8, "target_modules": f"{SEEING}|{PROJECTING}|{READING}"},
    "tower": {"r": 3, "lora_alpha": 6, "target_modules": SEEING},
    "some": {"r": 8, "lora_alpha": 8, "target_modules": r".*vision_tower.*1\.self_attn\.v_proj", "use_dora": True},
    "projector": {"r": 2, "lora_alpha": 4, "target_modules": PROJECTING, "use_rslora": True},
    "text": {"r": 5, "lora_alpha": 10, "target_modules": READING},
    "whole": {"r": 2, "lora_alpha": 4, "target_modules": READING, "modules_to_save": ["multi_modal_projector"]},
    "names": {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj", "linear_1"]},
}


class Kit:
    """A tiny model, and adapters for it. model: a `Model` of `llava_rig` or `gemma3_rig`."""

    def __init__(self, folder: Path, model: Any, adapters: Mapping[str, dict[str, Any]]) -> None:
        self.model = model
        self.folders = {name: self.made(folder, i, name, each) for i, (name, each) in enumerate(adapters.items())}

    def made(self, folder: Path, seed: int, name: str, settings: dict[str, Any]) -> Path:
        from peft import LoraConfig, get_peft_model

        generator = torch.Generator().manual_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = get_peft_model(self.fresh(), LoraConfig(**settings))
            with torch.no_grad():
                for path, parameter in made.named_parameters():
                    if "lora_magnitude" in path:
                        parameter.mul_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
                    elif "modules_to_save" in path:
                        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
                    elif "lora_" in path:
                        noise = torch.randn(parameter.shape, generator=generator)
                        parameter.copy_(0.7 * noise / parameter.shape[-1] ** 0.5)
            made.save_pretrained(folder / name)
        return folder / name

    def fresh(self) -> Any:
        kind: Any = type(self.model.reference)
        return kind.from_pretrained(self.model.folder, dtype=torch.float32, attn_implementation="eager")

    def oracle(self, name: str) -> Any:
        from peft import PeftModel

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PeftModel.from_pretrained(self.fresh(), self.folders[name]).eval() if name else self.model.reference


def uses(*names: str) -> tuple[WeightedAdapter, ...]:
    return tuple(WeightedAdapter(AdapterRef(name=name)) for name in names if name)
