"""Tensors of an adapter that do not fit the model are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_drafts import Draft, Q, draft, refused
from lora_rig import Base, Ours
from torch import Tensor

# --- the tensors ---------------------------------------------------------------------------------------


def without(name: str) -> Callable[[Draft], None]:
    def change(bad: Draft) -> None:
        del bad.tensors[name]

    return change


def having(name: str, *shape: int, value: float = 1.0, **config: Any) -> Callable[[Draft], None]:
    def change(bad: Draft) -> None:
        bad.tensors[name] = torch.full(shape, value)
        bad.config |= config

    return change


EMBED = "base_model.model.model.embed_tokens"


WRONG: dict[str, tuple[Callable[[Draft], None], str]] = {
    "half a pair": (without(f"{Q}.lora_B.weight"), f"lacks '{Q}.lora_B.weight'"),
    "the other half": (without(f"{Q}.lora_A.weight"), f"lacks '{Q}.lora_A.weight'"),
    "no tensors": (lambda bad: bad.tensors.clear(), "changes nothing: it has no tensors"),
    "another width": (having(f"{Q}.lora_A.weight", 4, 128), "has shape [4, 128]; by adapter_config.json (rank 4)"),
    "another height": (having(f"{Q}.lora_B.weight", 65, 4), "this model it should be [64, 4]"),
    "one dimension": (having(f"{Q}.lora_B.weight", 256), "has shape [256]"),
    "no numbers": (having(f"{Q}.lora_A.weight", 4, 64, value=float("nan")), "not finite"),
    "infinity": (having(f"{Q}.lora_B.weight", 64, 4, value=float("inf")), "not finite"),
    "too large with alpha": (having(f"{Q}.lora_B.weight", 64, 4, value=2e38), "not finite"),
    "an unknown kind": (having(f"{Q}.lora_C.x", 1), f"tensors of no known kind: '{Q}.lora_C.x'"),
    "trained tokens": (
        having(f"{EMBED}.token_adapter.trainable_tokens_delta", 2, 64),
        "tensors of no known kind",
    ),
    "another adapter's name": (having(f"{Q}.lora_A.default.weight", 4, 64), "lora_A.default'; this model has no"),
    "no such layer": (
        having("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", 4, 64),
        "'model.layers.2.self_attn.q_proj'; this model has no matrix, table or expert of that name",
    ),
    "no such module": (having("base_model.model.score.weight", 2, 64), "'score'; this model has no matrix"),
    "magnitudes without DoRA": (having(f"{Q}.lora_magnitude_vector", 64), "without a meaning there"),
    "a bias of low rank unasked for": (having(f"{Q}.lora_B.bias", 64), "without a meaning there"),
    "a bias where there is none": (having(f"{Q}.base_layer.bias", 64), "which has none in this model"),
    "a norm trained": (
        having("base_model.model.model.norm.weight", 64, modules_to_save=["norm"]),
        "'base_model.model.model.norm.weight' trained whole; only heads, embeddings",
    ),
    "a matrix trained": (having(f"{Q}.base_layer.weight", 64, 64), "trained whole; only heads"),
    "added tokens": (
        having("base_model.model.lm_head.weight", 270, 64, modules_to_save=["lm_head"]),
        "has rows for 270 tokens, and this model has 264: adapters with another vocabulary (added tokens)",
    ),
    "added embeddings": (having(f"{EMBED}.base_layer.weight", 270, 64), "adapters with another vocabulary"),
    "a head of another width": (having("base_model.model.lm_head.weight", 264, 32), "has shape [264, 32]"),
    "embeddings like a matrix": (having(f"{EMBED}.lora_A.weight", 4, 64), "without a meaning there"),
    "half of embeddings": (having(f"{EMBED}.lora_embedding_A", 4, 264), f"lacks '{EMBED}.lora_embedding_B'"),
    "twice the same": (having(f"{Q[len('base_model.model.') :]}.lora_A.weight", 4, 64), "has both"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_tensors_that_do_not_fit_are_named(
    ours: Ours, tmp_path: Path, case: tuple[Callable[[Draft], None], str]
) -> None:
    bad, (change, said) = draft(), case
    change(bad)
    assert said in refused(ours, bad.write(tmp_path / "x"))


def test_numbers_beyond_a_narrow_data_type_are_refused(tmp_path: Path) -> None:
    half = Ours(Base(tmp_path / "base", "LlamaForCausalLM"), dtype="float16")
    bad = draft()
    bad.tensors[f"{Q}.lora_B.weight"][3, 2] = 40_000  # times alpha / r = 2
    assert "beyond what a model can compute with (±6.55e+04)" in refused(half, bad.write(tmp_path / "x"))


def test_experts_that_do_not_fit_are_refused(mixtral: Ours, tmp_path: Path) -> None:
    experts = "base_model.model.model.layers.0.mlp.experts"
    pair = {f"{experts}.lora_A.weight": torch.ones(16, 96), f"{experts}.lora_B.weight": torch.ones(64, 16)}
    config = {"peft_type": "LORA", "r": 4, "target_modules": [], "target_parameters": ["experts.down_proj"]}
    one = "base_model.model.model.layers.0.block_sparse_moe.experts.0.w2"
    alone = {f"{one}.lora_A.weight": torch.ones(4, 96), f"{one}.lora_B.weight": torch.ones(64, 4)}
    beyond = {name.replace("experts.0", "experts.4"): tensor for name, tensor in alone.items()}
    cases: list[tuple[dict[str, Any], dict[str, Tensor], str]] = [
        ({}, {**pair, f"{experts}.lora_A.weight": torch.ones(16, 60)}, "fit no matrix of these experts: 192 outputs"),
        ({}, {**pair, f"{experts}.lora_A.weight": torch.ones(12, 96)}, "(rank 4, 4 experts)"),
        ({"use_dora": True}, pair, "uses DoRA on experts"),
        ({"target_parameters": ["gate_up_proj"]}, pair, "which adapter_config.json does not list"),
        ({"target_modules": ["w2"]}, {**pair, **alone}, "twice: as a whole, and in parts"),
        ({"target_modules": ["w2"]}, beyond, "experts.4.w2'; this model has no matrix, table or expert of that name"),
    ]
    for change, given, said in cases:
        assert said in refused(mixtral, Draft({**config, **change}, given).write(tmp_path / "x"))
    assert mixtral.lora.load("x", Draft(config, pair).write(tmp_path / "x")).metadata.rank == 4


def test_a_matrix_and_the_one_it_was_fused_to_are_not_both_changed(tmp_path: Path) -> None:
    phi = Ours(Base(tmp_path / "base", "Phi3ForCausalLM"))
    attn = "base_model.model.model.layers.0.self_attn"
    given = {
        f"{attn}.{module}.lora_{half}.weight": torch.ones(shape)
        for module, outputs in (("qkv_proj", 128), ("q_proj", 64))
        for half, shape in (("A", (4, 64)), ("B", (outputs, 4)))
    }
    config = {"peft_type": "LORA", "r": 4, "target_modules": ["qkv_proj", "q_proj"]}
    assert "twice: as a whole, and in parts" in refused(phi, Draft(config, given).write(tmp_path / "x"))


def test_biases_that_the_config_does_not_speak_of_are_refused(tmp_path: Path) -> None:
    qwen = Ours(Base(tmp_path / "base", "Qwen2ForCausalLM"))
    bad = draft()
    bad.tensors[f"{Q}.base_layer.bias"] = torch.ones(64)
    assert "has a trained bias" in refused(qwen, bad.write(tmp_path / "x"))
    bad.config["bias"] = "lora_only"
    qwen.lora.load("x", bad.write(tmp_path / "x"))


def test_biases_of_norms_that_were_trained_are_refused(gpt2: Base) -> None:
    folder = gpt2.adapter("x", r=4, target_modules=["c_attn"], fan_in_fan_out=True, bias="all")
    assert "ln_1.bias' trained whole; only heads" in refused(Ours(gpt2), folder)
