"""`platform adapters inspect`: what an adapter is, and whether it runs, by headers alone."""

import json
from types import SimpleNamespace

import pytest
import torch
from lora_rig import Base
from safetensors.torch import load_file, save_file

from quire.cli import main
from quire.errors import BadRequest
from quire.hooks.registry import load
from quire.isolation.plugin_calls import InProcessCalls
from quire_adapter_tools.base_model import read_base
from quire_adapter_tools.inspection import facts, problem_on, read_adapter

QV = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    registry = load(enable_lora=True)
    base = Base(tmp_path_factory.mktemp("models") / "base", "LlamaForCausalLM")
    other = Base(tmp_path_factory.mktemp("models") / "other", "LlamaForCausalLM", hidden_size=32, head_dim=8)
    return SimpleNamespace(base=base, other=other, registry=registry, model=read_base(str(base.folder), registry))


def problem(rig, folder, model=None, max_rank=64):
    calls = InProcessCalls()
    return problem_on(read_adapter(folder, calls), model or rig.model, rig.registry, max_rank, calls)


def test_the_report_says_what_an_adapter_is(rig):
    folder = rig.base.adapter("facts", use_rslora=True, rank_pattern={"v_proj": 2}, **QV)
    found = facts(read_adapter(folder, InProcessCalls()))
    assert (found["kind"], found["rank"], found["alpha"]) == ("LORA, rsLoRA", "2 to 4", "8")
    assert found["target modules"] == "q_proj, v_proj"
    stored = load_file(folder / "adapter_model.safetensors")
    assert found["parameters"] == sum(tensor.numel() for tensor in stored.values())
    assert found["tensors"] == f"{len(stored)} (F32)"
    assert found["bytes"] == (folder / "adapter_model.safetensors").stat().st_size


@pytest.mark.parametrize("variant", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}, {"r": 2, "bias": "all"}])
def test_an_adapter_of_the_model_runs_and_no_number_of_it_is_read(rig, variant, monkeypatch):
    folder = rig.base.adapter("-".join(["runs", *variant]), **{**QV, **variant})
    monkeypatch.setattr(torch, "frombuffer", None)
    assert problem(rig, folder) is None


def test_the_reason_names_what_does_not_fit(rig):
    folder = rig.base.adapter("misfit", **QV)
    other = read_base(str(rig.other.folder), rig.registry)
    assert "has shape [4, 64]" in problem(rig, folder, other)
    assert "--max-lora-rank" in problem(rig, folder, max_rank=2)


def test_a_kind_without_a_runtime_and_a_variant_that_is_not_supported_are_named(rig):
    folder = rig.base.adapter("kind", **QV)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "peft_type": "LOHA"}))
    assert "no loaded plugin runs adapters of the kind LOHA" in problem(rig, folder)
    path.write_text(json.dumps({**config, "arrow_config": {"top_k": 1}}))
    assert "Arrow" in problem(rig, folder)


@pytest.mark.parametrize("shape", [(96, 1), (1, 64), (7, 1)])
def test_vectors_are_compared_with_the_matrices_they_scale(rig, shape, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    name = "base_model.model.model.layers.0.mlp.up_proj.ia3_l"
    save_file({name: torch.ones(shape)}, tmp_path / "adapter_model.safetensors")
    found = problem(rig, tmp_path)
    assert found is None if shape != (7, 1) else "it must be [1, 64] or [96, 1]" in found


@pytest.mark.parametrize(
    ("kind", "shape", "said"),
    [
        ("P_TUNING", (8, 64), None),
        ("PREFIX_TUNING", (8, 128), None),
        ("PREFIX_TUNING", (8, 256), "it must be [8, 128] (keys and values of 2 layers)"),
        ("PROMPT_TUNING", (7, 64), "it must be [8, 64] (embeddings)"),
    ],
)
def test_virtual_tokens_are_compared_with_the_model(rig, kind, shape, said, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": kind, "num_virtual_tokens": 8}))
    save_file({"prompt_embeddings": torch.ones(shape)}, tmp_path / "adapter_model.safetensors")
    assert facts(read_adapter(tmp_path, InProcessCalls()))["virtual tokens"] == 8
    found = problem(rig, tmp_path)
    assert found is None if said is None else said in found


def test_a_sparse_file_with_huge_tensors_and_odd_settings_is_refused_in_a_sentence(rig, tmp_path, capsys):
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": None, "target_modules": [1, None], "task_type": "\x1b[2J"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    name, columns = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 1 << 36
    header = json.dumps({name: {"dtype": "F32", "shape": [4, columns], "data_offsets": [0, 16 * columns]}}).encode()
    with (tmp_path / "adapter_model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 16 * columns)
    assert main(["adapters", "inspect", str(tmp_path), "--model", str(rig.base.folder)]) == 1
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "`lora_alpha` must be a number" in said
    settings = {**settings, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    assert "bytes; one of this model has at most" in problem(rig, tmp_path)


def test_a_header_that_lies_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(BadRequest, match=r"truncated: 'x' ends after the file"):
        read_adapter(tmp_path, InProcessCalls())


def test_a_pickle_is_read_without_its_numbers_and_one_with_code_is_refused(rig, tmp_path):
    folder = rig.base.adapter("pickle", **QV)
    tensors = load_file(folder / "adapter_model.safetensors")
    torch.save(tensors, folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()
    assert problem(rig, folder) is None
    torch.save({"x": print}, folder / "adapter_model.bin")
    with pytest.raises(BadRequest, match="holds more than tensors"):
        read_adapter(folder, InProcessCalls())


def test_the_command_reads_files_in_another_process_and_its_status_is_the_answer(rig, capsys):
    folder = rig.base.adapter("command", **QV)
    assert main(["adapters", "inspect", str(folder), "--model", str(rig.base.folder)]) == 0
    assert "It runs on" in capsys.readouterr().out
    assert main(["adapters", "inspect", str(folder), "--model", str(rig.other.folder), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["runs"]
    assert "shape" in report["problem"]
