"""Experts of published Qwen3-VL checkpoints, whose matrices are stored with inputs first."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from engine_rig import rig_of
from family_checks import plugins
from llava_rig import our_logits
from picture_model import PictureModel
from qwen_families import qwen_families
from safetensors.torch import load_file, save_file

from quire.types import Prompt

PROMPT = Prompt(token_ids=tuple(b"a text of some length"))


def test_experts_may_be_stored_with_inputs_or_outputs_first(tmp_path: Path) -> None:
    family = qwen_families()["qwen3-vl, experts"]
    family.config["text_config"].moe_intermediate_size = 24  # so that no matrix is square
    model = PictureModel(tmp_path, family)
    turned = Path(shutil.copytree(model.folder, tmp_path / "turned"))
    tensors = load_file(turned / "model.safetensors")
    experts = [name for name in tensors if ".experts." in name]
    assert len(experts) == 4
    for name in experts:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, turned / "model.safetensors", {"format": "pt"})
    logits = []
    for folder in (model.folder, turned):
        with rig_of(folder, plugins()) as rig:
            logits.append(our_logits(rig.engine.loaded, PROMPT))
    assert torch.equal(*logits)
