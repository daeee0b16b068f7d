"""Weights that a checkpoint stores quantized: how they reach the modules, fused, mixed, in experts and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from quire.errors import CheckpointError
from quire.hooks import registry
from quire.records import StoredMatrix
from quire_kernels import select
from quire_kernels.quantized import QuantizedMatrix
from quire_models.loading import checkpoint, tensor_files, weights
from quire_models.loading.quantized_files import QuantizedFiles
from quire_models.modules.builder import ModuleBuilder
from quire_models.modules.moe import MoEModule
from quire_models.testing import ChunkSpec, ModelDriver

LLAMA: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": True,
}
MOE = {
    **LLAMA,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "attention_bias": False,
}


@dataclass(frozen=True)
class Packed:
    """A made-up format: `X.codes` and `X.scales` with 4 bits, or 6 where the codes are int16."""

    def matrices(self, shapes: Mapping[str, tuple[int, ...]], read: Any) -> Mapping[str, StoredMatrix]:
        names = [name.removesuffix(".codes") for name in shapes if name.endswith(".codes")]
        return {
            f"{name}.weight": StoredMatrix(
                shapes[f"{name}.codes"], {"codes": f"{name}.codes", "scales": f"{name}.scales"}
            )
            for name in names
        }

    def read(self, name: str, stored: StoredMatrix, tensors: Mapping[str, Tensor]) -> Any:
        bits = 6 if tensors["codes"].dtype == torch.int16 else 4
        group = stored.shape[1] // tensors["scales"].shape[1]
        return QuantizedMatrix(tensors["codes"].to(torch.uint8), tensors["scales"], bits, group, zero=1 << (bits - 1))


def quantize(weight: Tensor, bits: int, group: int) -> QuantizedMatrix:
    """Round a matrix to the nearest codes."""
    half = 1 << (bits - 1)
    groups = weight.float().view(len(weight), -1, group)
    scales = groups.abs().amax(-1) / (half - 1)
    codes = (groups / scales[..., None]).round().clamp(-half, half - 1) + half
    return QuantizedMatrix(codes.view(weight.shape).to(torch.uint8), scales, bits, group, zero=half)


def write(folder: Path, model: Any, formats: Mapping[str, tuple[int, int]]) -> None:
    """Save the model with (bits, group size) of the weights whose names contain a key, and change the model alike."""
    tensors: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        chosen = next((form for part, form in formats.items() if part in name and name.endswith(".weight")), None)
        if chosen is None:
            tensors[name] = weight.clone()
            continue
        matrix = quantize(weight, *chosen)
        weight.copy_(matrix.dequantized())
        stem = name.removesuffix(".weight")
        tensors[f"{stem}.codes"] = matrix.codes.to(torch.int16) if chosen[0] == 6 else matrix.codes
        tensors[f"{stem}.scales"] = matrix.scales
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors")


def load(folder: Path, activation_bits: int = 16) -> tuple[Any, Any]:
    config = checkpoint.read_config(folder)
    plugins = registry.load(["llama", "qwen"])
    family = plugins.by_hook("quire_architectures")[config.architectures[0]]
    decoder = family.decoder(config)
    query = registry_query()
    builder = ModuleBuilder(
        select.choose(query), torch.float32, torch.device("cpu"), keep_weights=False, activation_bits=activation_bits
    )
    model = decoder.build(builder)
    files = QuantizedFiles(tensor_files.find(folder), Packed())
    weights.load(model, decoder, family.names, files)
    return model, decoder


def registry_query() -> Any:
    from quire.records import OpQuery

    return OpQuery("cpu", "float32", head_dims=(16,))


def check_logits(folder: Path, expected: Any) -> Any:
    model, decoder = load(folder)
    tokens = [3, 14, 15, 9, 26, 5]
    driver = ModelDriver(model, decoder, [tokens])
    ours = driver.step([ChunkSpec(0, len(tokens))])[0]
    theirs = expected.eval()(torch.tensor([tokens])).logits[0, -1]
    torch.testing.assert_close(ours[-1], theirs, rtol=1e-4, atol=1e-4)
    return model


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        return LlamaForCausalLM(LlamaConfig(**LLAMA, **changes)).requires_grad_(False)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_of_one_format_has_the_logits_of_the_dequantized_one(tmp_path: Path, tied: bool) -> None:
    model = llama(tie_word_embeddings=tied)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    write(tmp_path, model, {"proj": (4, 32), "embed_tokens": (4, 16), "lm_head": (4, 16)})
    loaded = check_logits(tmp_path, model)
    matrices = [parameter for name, parameter in loaded.named_parameters() if parameter.dim() == 2]
    assert all(parameter.numel() == 0 for parameter in matrices), "no matrix is kept in the model's data type"


def test_formats_may_be_mixed_within_a_fused_matrix(tmp_path: Path) -> None:
    model = llama()
    write(tmp_path, model, {"q_proj": (4, 32), "v_proj": (6, 16), "k_proj": (4, 64), "gate_proj": (6, 32)})
    loaded = check_logits(tmp_path, model)
    assert loaded.blocks[0].attn.qkv.holds_quantized_pieces
    gate_up = loaded.blocks[0].mlp.gate_up
    assert not gate_up.holds_quantized_pieces, "its other half is not quantized, so it is widened"


def test_experts_are_bound_one_by_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**MOE)).requires_grad_(False)
    model.save_pretrained(tmp_path, safe_serialization=True)
    saved = load_file(tmp_path / "model.safetensors")
    tensors = {name: tensor for name, tensor in saved.items() if ".experts." not in name}
    for name in saved.keys() - tensors.keys():
        matrix = quantize(saved[name], 4, 32)
        saved[name].copy_(matrix.dequantized())
        stem = name.removesuffix(".weight")
        tensors[f"{stem}.codes"], tensors[f"{stem}.scales"] = matrix.codes, matrix.scales
    save_file(saved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    expected = Qwen3MoeForCausalLM.from_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = check_logits(tmp_path, expected)
    experts = [module.experts for module in loaded.modules() if isinstance(module, MoEModule)]
    assert experts
    assert all(part.gate_up.numel() == part.down.numel() == 0 for part in experts)


def test_a_weight_that_is_there_twice_or_not_at_all_is_refused(tmp_path: Path) -> None:
    write(tmp_path, llama(), {"q_proj": (4, 32)})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.self_attn.q_proj"
    save_file({**tensors, f"{name}.weight": torch.zeros(64, 64)}, file)
    with pytest.raises(CheckpointError, match=r"q_proj.weight' both quantized and not"):
        load(tmp_path)
    save_file({key: value for key, value in tensors.items() if not key.startswith(name)}, file)
    with pytest.raises(CheckpointError, match="lacks"):
        load(tmp_path)


def test_a_quantized_weight_of_another_shape_is_refused(tmp_path: Path) -> None:
    write(tmp_path, llama(), {"down_proj": (4, 32)})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.down_proj"
    tensors[f"{name}.codes"] = tensors[f"{name}.codes"][:, :64].contiguous()
    tensors[f"{name}.scales"] = tensors[f"{name}.scales"][:, :2].contiguous()
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"down_proj.weight' has shape \[64, 64\]"):
        load(tmp_path)
