"""Checkpoints of tiny models with an MTP layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from head_rig import Tensors, model_weights
from latent_cases import SPARSE
from moe_cases import DEEPSEEK
from safetensors.torch import save_file

from quire_testing.tiny import SIZES, VOCAB_SIZE, byte_tokenizer, save

WIDTH = SIZES["hidden_size"]
GLM, QWEN = "Glm4MoeForCausalLM", "Qwen3NextForCausalLM"
FAMILIES: dict[str, dict[str, Any]] = {
    GLM: {**DEEPSEEK, "use_qk_norm": True},
    "DeepseekV3ForCausalLM": {**SPARSE, "head_dim": 8},
    QWEN: {"layer_types": ["full_attention"] * 3, "num_experts": 0},
}
OF_QWEN = {
    "eh_proj.weight": "fc.weight",
    "enorm.weight": "pre_fc_norm_embedding.weight",
    "hnorm.weight": "pre_fc_norm_hidden.weight",
    "shared_head.norm.weight": "norm.weight",
}


def mtp_tensors(own_head: bool, own_table: bool, seed: int = 8) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    found: Tensors = {f"{name}.weight": 1 + torch.randn(WIDTH, generator=generator) / 5 for name in ("enorm", "hnorm")}
    found["shared_head.norm.weight"] = 1 + torch.randn(WIDTH, generator=generator) / 5
    found["eh_proj.weight"] = torch.randn(WIDTH, 2 * WIDTH, generator=generator) / 8
    if own_head:
        found["shared_head.head.weight"] = torch.randn(VOCAB_SIZE, WIDTH, generator=generator)
    if own_table:
        found["embed_tokens.weight"] = torch.randn(VOCAB_SIZE, WIDTH, generator=generator)
    return found


def cut_layer(model: Any, folder: Path, own: Tensors) -> Path:
    """Write a model of several layers as one whose last layer is an MTP layer."""
    save(model, folder)
    config = json.loads((folder / "config.json").read_text())
    count = config["num_hidden_layers"] - 1
    config |= {key: config[key][:count] for key in ("layer_types", "mlp_layer_types") if config.get(key)}
    config |= {"num_hidden_layers": count, "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    layer, tensors = f"model.layers.{count}.", model_weights(folder)
    if config["architectures"] == [QWEN]:
        own = {f"mtp.{OF_QWEN[name]}": tensor for name, tensor in own.items()}
        tensors = {name.replace(layer, "mtp.layers.0."): tensor for name, tensor in tensors.items()} | own
    else:
        tensors |= {f"{layer}{name}": tensor for name, tensor in own.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return byte_tokenizer(folder)
