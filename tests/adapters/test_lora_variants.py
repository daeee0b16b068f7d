"""Every kind of adapter that can be loaded, against peft: variants, targets, patterns, file formats, other names."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_rig import Base, Ours, random_seqs
from safetensors.torch import load_file, save_file

TOLERANCE = 1e-4
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LLAMA, QWEN, GPT2, OPT = "LlamaForCausalLM", "Qwen2ForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM"
TIED = {"tie_word_embeddings": True}
TABLES = ["embed_tokens", "lm_head"]


@dataclass(frozen=True)
class Case:
    """What is special about a model, and the settings of an adapter."""

    architecture: str
    config: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)


CASES = {
    "embeddings and head with DoRA": Case(LLAMA, {"target_modules": [*TABLES, "q_proj"], "use_dora": True}),
    "scaled embeddings": Case("Gemma2ForCausalLM", {"target_modules": ["embed_tokens", "q_proj"]}),
    "scaled embeddings with DoRA": Case("Gemma2ForCausalLM", {"target_modules": ["embed_tokens"], "use_dora": True}),
    "a tied model, both": Case(LLAMA, {"target_modules": TABLES}, TIED),
    "a tied model, kept tied": Case(LLAMA, {"target_modules": TABLES, "ensure_weight_tying": True}, TIED),
    "a tied model, embeddings only": Case(LLAMA, {"target_modules": ["embed_tokens"]}, TIED),
    "a tied model, head only": Case(LLAMA, {"target_modules": ["lm_head"], "use_dora": True}, TIED),
    "embeddings saved": Case(LLAMA, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, TIED),
    "embeddings saved, kept tied": Case(
        LLAMA,
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        TIED,
    ),
    "embeddings and head saved": Case(
        "GraniteForCausalLM",
        {"target_modules": ["q_proj"], "modules_to_save": TABLES},
        {"embedding_multiplier": 1.5, "logits_scaling": 2.0},
    ),
    "all biases": Case(QWEN, {"target_modules": ["q_proj", "o_proj"], "bias": "all"}),
    "biases of targets": Case(QWEN, {"target_modules": ["q_proj", "o_proj"], "bias": "lora_only"}),
    "biases with DoRA": Case(QWEN, {"target_modules": ["q_proj", "o_proj"], "bias": "lora_only", "use_dora": True}),
    "biases of low rank": Case(QWEN, {"target_modules": ["q_proj", "o_proj"], "lora_bias": True}),
    "transposed and fused": Case(
        GPT2, {"target_modules": ["c_attn", "c_proj", "c_fc", "wte"], "fan_in_fan_out": True, "use_dora": True}
    ),
    "learned positions": Case(GPT2, {"target_modules": ["c_attn", "wpe"], "fan_in_fan_out": True, "bias": "lora_only"}),
    "fused": Case("Phi3ForCausalLM", {"target_modules": "all-linear", "use_dora": True}),
    "a plain MLP": Case(OPT, {"target_modules": "all-linear", "bias": "lora_only"}),
    "projections in and out": Case(
        OPT, {"target_modules": ["project_in", "project_out", "q_proj"]}, {"word_embed_proj_dim": 32}
    ),
    "norms of heads": Case("Qwen3ForCausalLM", {"target_modules": ALL}),
    "experts and router": Case(
        "MixtralForCausalLM",
        {"target_modules": ["q_proj"], "target_parameters": ["gate_up_proj", "experts.down_proj", "gate.weight"]},
    ),
    "one matrix of experts": Case(
        "MixtralForCausalLM", {"target_modules": [], "target_parameters": ["experts.down_proj"]}
    ),
    "experts, rank-stabilised": Case(
        "Qwen3MoeForCausalLM",
        {"target_modules": ["q_proj"], "target_parameters": ["gate_up_proj", "down_proj"], "use_rslora": True},
    ),
    "some layers": Case(
        LLAMA,
        {
            "target_modules": ALL,
            "layers_to_transform": [1],
            "layers_pattern": "layers",
            "exclude_modules": ["up_proj"],
        },
    ),
    "a regular expression": Case(
        LLAMA,
        {
            "target_modules": r".*layers\.0\..*(q|up)_proj",
            "rank_pattern": {r"layers\.\d+\.self_attn\.q_proj": 2},
            "alpha_pattern": {"up_proj": 3},
        },
    ),
    "orthogonal at first": Case(LLAMA, {"target_modules": ALL, "init_lora_weights": "orthogonal"}),
    "minor components at first": Case(LLAMA, {"target_modules": ALL, "init_lora_weights": "mica"}),
}


def compare(base: Base, folder: Path, ours: Ours | None = None) -> None:
    """Two seqs with the adapter and one without have the logits that peft gives them."""
    seqs = random_seqs(3)
    ours = ours or Ours(base)
    adapter = ours.lora.load("x", folder)
    found = ours.logits(seqs, [{adapter: 1.0}, {}, {adapter: 1.0}])
    with_adapter, without = base.oracle(folder, seqs), base.oracle(None, seqs)
    for i, wanted in enumerate((with_adapter[0], without[1], with_adapter[2])):
        torch.testing.assert_close(found[i], wanted, rtol=0, atol=TOLERANCE)
    assert (with_adapter[0] - without[0]).abs().max() > 1000 * TOLERANCE, "the adapter changes too little to see"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_adapters_of_every_kind_have_the_logits_of_peft(case: Case, tmp_path: Path) -> None:
    base = Base(tmp_path / "base", case.architecture, **case.model)
    compare(base, base.adapter("x", like=0.7, **{"r": 4, "lora_alpha": 4, **case.config}))


# --- files ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("lora") / "base", LLAMA)


@pytest.fixture(scope="module")
def adapter(base: Base) -> Path:
    return base.adapter("plain", like=0.7, r=4, target_modules=["q_proj", "embed_tokens", "lm_head"])


def copied(adapter: Path, to: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors of an adapter, and its config, which is written to a new folder."""
    to.mkdir()
    config = json.loads((adapter / "adapter_config.json").read_text())
    (to / "adapter_config.json").write_text(json.dumps(config))
    return load_file(adapter / "adapter_model.safetensors"), config


def test_tensors_of_torchs_own_format_are_read(base: Base, adapter: Path, tmp_path: Path) -> None:
    tensors, _ = copied(adapter, tmp_path / "bin")
    torch.save(tensors, tmp_path / "bin" / "adapter_model.bin")
    compare(base, tmp_path / "bin")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_may_have_another_data_type_than_the_model(
    base: Base, adapter: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    tensors, _ = copied(adapter, tmp_path / "x")
    kept = {name: tensor.to(dtype) for name, tensor in tensors.items() if "base_layer" not in name}
    save_file(kept, tmp_path / "x" / "adapter_model.safetensors")
    compare(base, tmp_path / "x")


def test_what_peft_saves_of_the_base_is_no_change_unless_it_was_trained(
    base: Base, adapter: Path, tmp_path: Path
) -> None:
    tensors, _ = copied(adapter, tmp_path / "x")
    assert sum("base_layer.weight" in name for name in tensors) == 2
    ours = Ours(base)
    small = ours.lora.load("plain", adapter).metadata.num_bytes
    for name in tensors:
        if "base_layer.weight" in name:
            tensors[name] = tensors[name] * 1.5
    save_file(tensors, tmp_path / "x" / "adapter_model.safetensors")
    compare(base, tmp_path / "x", ours)
    large = ours.lora.load("trained", tmp_path / "x").metadata.num_bytes
    assert small < 64 * 264 * 4 < 2 * 64 * 264 * 4 < large


def test_an_adapter_of_a_model_without_its_head_fits_the_whole_one(base: Base, adapter: Path, tmp_path: Path) -> None:
    tensors, _ = copied(adapter, tmp_path / "x")
    kept = {name: tensor for name, tensor in tensors.items() if "lm_head" not in name}
    shorter = {name.replace("model.model.model.", "model.model."): tensor for name, tensor in kept.items()}
    save_file(kept, tmp_path / "x" / "adapter_model.safetensors")
    _, _ = copied(adapter, tmp_path / "shorter")
    save_file(shorter, tmp_path / "shorter" / "adapter_model.safetensors")
    ours, seqs = Ours(base), random_seqs(1)
    one, other = (ours.lora.load(name, tmp_path / name) for name in ("x", "shorter"))
    assert torch.equal(ours.logits(seqs, [{one: 1.0}])[0], ours.logits(seqs, [{other: 1.0}])[0])


def test_experts_by_their_old_names_one_by_one(tmp_path: Path) -> None:
    mixtral = Base(tmp_path / "base", "MixtralForCausalLM")
    folder, generator = tmp_path / "old", torch.Generator().manual_seed(0)
    folder.mkdir()
    tensors = {}
    shapes = {
        f"experts.{e}.{w}": s for e in range(4) for w, s in (("w1", (96, 64)), ("w2", (64, 96)), ("w3", (96, 64)))
    }
    for layer in range(2):
        for name, (outputs, inputs) in {**shapes, "gate": (4, 64)}.items():
            path = f"base_model.model.model.layers.{layer}.block_sparse_moe.{name}"
            tensors[f"{path}.lora_A.weight"] = torch.randn(4, inputs, generator=generator) / inputs**0.5
            tensors[f"{path}.lora_B.weight"] = torch.randn(outputs, 4, generator=generator) / 2
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["w1", "w2", "w3", "gate"]}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(mixtral.folder)}))
    compare(mixtral, folder)
