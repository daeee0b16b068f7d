"""What is no adapter, or none for this model, is refused at once, with the reason; nothing has changed then."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_rig import Base, Ours, random_seqs
from safetensors.torch import save, save_file
from torch import Tensor

from quire.errors import BadRequest
from quire_adapters.config import MAX_BYTES

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


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Ours:
    base = Base(tmp_path_factory.mktemp("lora") / "base", "LlamaForCausalLM")
    return Ours(base, max_rank=16)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Ours:
    return Ours(Base(tmp_path_factory.mktemp("lora") / "base", "MixtralForCausalLM"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("lora") / "base", "GPT2LMHeadModel")


def refused(ours: Ours, folder: Path) -> str:
    """What is said of it; it must not have taken a seat."""
    seats = ours.lora.seats
    with pytest.raises(BadRequest) as found:
        ours.lora.load("x", folder)
    assert found.value.param == "lora_path"
    assert ours.lora.seats == seats
    return found.value.message


def test_the_draft_itself_is_good(ours: Ours, tmp_path: Path) -> None:
    adapter = ours.lora.load("x", draft().write(tmp_path / "x"))
    seqs = random_seqs(1)
    found, plain = (ours.logits(seqs, [use])[0] for use in ({adapter: 1.0}, {}))
    assert (found - plain).abs().max() > 0.1
    assert (adapter.facts.rank, adapter.facts.targets) == (4, ("q_proj", "up_proj"))


# --- the config ----------------------------------------------------------------------------------------

VARIANTS = {
    "layer_replication": [[0, 1], [0, 2]],
    "trainable_token_indices": [1, 2],
    "alora_invocation_tokens": [1],
    "use_qalora": True,
    "arrow_config": {"top_k": 1},
    "use_bdlora": {"nblocks": 2},
    "kasa_config": {"beta": 1},
    "monteclora_config": {"num_samples": 2},
    "velora_config": {"num_groups": 2},
    "megatron_config": {"x": 1},
}


@pytest.mark.parametrize("field", VARIANTS)
def test_variants_that_cannot_be_run_are_named(ours: Ours, tmp_path: Path, field: str) -> None:
    bad = draft()
    bad.config[field] = VARIANTS[field]
    assert f"sets `{field}`, which cannot be run here: it" in refused(ours, bad.write(tmp_path / "x"))
    bad.config[field] = None
    ours.lora.load("x", bad.write(tmp_path / "x"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"r": 0}, "`r` must be a whole number of at least 1, not 0"),
        ({"r": "4"}, "`r` must be a whole number of at least 1, not '4'"),
        ({"r": True}, "`r` must be a whole number of at least 1, not True"),
        ({"r": 17}, "rank 17 for 'model.layers.0.self_attn.q_proj'; at most 16 is allowed (--max-lora-rank)"),
        ({"r": 8}, "(rank 8) and this model it should be [8, 64]"),
        ({"lora_alpha": "x"}, "`lora_alpha` must be a number from -1000000 to 1000000, not 'x'"),
        ({"bias": "some"}, "`bias` must be one of none, all, lora_only, not 'some'"),
        ({"rank_pattern": {"q_proj": 2}}, "by adapter_config.json (rank 2) and this model it should be [2, 64]"),
        ({"rank_pattern": {"(": 2}}, "a pattern that cannot be used, '(.*\\\\.)?(()'"),
        ({"alpha_pattern": {"q_proj": None}}, "`alpha_pattern` must be an object of numbers, or null"),
        ({"lora_alpha": 1e300}, "`lora_alpha` must be a number from -1000000 to 1000000, not 1e+300"),
        ({"target_modules": 3}, "`target_modules` must be a string or a list of strings, or null, not 3"),
        ({"target_parameters": "x"}, "`target_parameters` must be a list of strings, or null, not 'x'"),
        ({"layers_to_transform": ["x"]}, "`layers_to_transform` must be a whole number or a list of them"),
        ({"use_rslora": 1}, "`use_rslora` must be true or false, not 1"),
        ({"lora_alpha": float("nan")}, "`lora_alpha` must be a number from -1000000 to 1000000, not nan"),
        ({"target_modules": ["k_proj"]}, "'model.layers.0.self_attn.q_proj', which adapter_config.json does not count"),
        ({"target_modules": r".*\.q_proj"}, "'model.layers.1.mlp.up_proj', which adapter_config.json does not count"),
        ({"target_modules": "("}, "a pattern that cannot be used, '('"),
        ({"exclude_modules": ["up_proj"]}, "'model.layers.1.mlp.up_proj', which adapter_config.json does not count"),
        ({"exclude_modules": r".*layers\.1.*"}, "'model.layers.1.mlp.up_proj', which adapter_config.json does not"),
        ({"layers_to_transform": 0}, "'model.layers.1.mlp.up_proj', which adapter_config.json does not count"),
        ({"layers_to_transform": [0, 1], "layers_pattern": "h"}, "which adapter_config.json does not count"),
        ({"use_dora": True}, f"lacks '{Q}.lora_magnitude_vector'"),
        ({"lora_bias": True}, f"lacks '{Q}.lora_B.bias'"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused(ours: Ours, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    bad = draft()
    bad.config |= change
    assert said in refused(ours, bad.write(tmp_path / "x"))


def test_a_pattern_that_takes_for_ever_is_given_up(ours: Ours, tmp_path: Path) -> None:
    bad = draft()
    bad.config["target_modules"] = r"((.)|(..)|(...))*[A-Z]"
    assert "all together took longer than 2 s" in refused(ours, bad.write(tmp_path / "x"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b" " * (MAX_BYTES + 1), "has 1048577 bytes, and at most 1048576 are read"),
    ],
    ids=["empty", "cut off", "a list", "no text", "deep", "too long"],
)
def test_a_config_that_is_no_config_is_refused(ours: Ours, tmp_path: Path, text: bytes, said: str) -> None:
    folder = draft().write(tmp_path / "x")
    (folder / "adapter_config.json").write_bytes(text)
    assert said in refused(ours, folder)


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
        "'base_model.model.model.norm.weight' trained whole; of such only heads, the embeddings",
    ),
    "a matrix trained": (having(f"{Q}.base_layer.weight", 64, 64), "trained whole; of such only heads"),
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
        ({"target_parameters": ["gate_up_proj"]}, pair, "which adapter_config.json does not count"),
        ({"target_modules": ["w2"]}, {**pair, **alone}, "twice: as a whole, and in parts"),
        ({"target_modules": ["w2"]}, beyond, "experts.4.w2'; this model has no matrix, table or expert of that name"),
    ]
    for change, given, said in cases:
        assert said in refused(mixtral, Draft({**config, **change}, given).write(tmp_path / "x"))
    assert mixtral.lora.load("x", Draft(config, pair).write(tmp_path / "x")).facts.rank == 4


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
    assert "ln_1.bias' trained whole; of such only" in refused(Ours(gpt2), folder)


# --- the files -----------------------------------------------------------------------------------------


def good() -> bytes:
    return save(tensors())


def header(entries: Any, data: int = 0) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
FILES = {
    "empty": (b"", "truncated or corrupt"),
    "text": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "truncated or corrupt"),
    "cut in the header": (good()[:50], "truncated or corrupt"),
    "cut in the tensors": (good()[:-1], "truncated"),
    "something behind": (good() + b"x", "more in it than its tensors"),
    "header of a list": (header([]), "its header is no object"),
    "header of a number": (header({"a": 1}), "header cannot be read"),
    "whole numbers": (header({"a": {**ENTRY, "dtype": "I64"}}, 8), "tensors are of F64, F32, F16, BF16, not 'I64'"),
    "no shape": (header({"a": {"dtype": "F32"}}, 8), "header cannot be read ('shape')"),
    "a shape that lies": (header({"a": {**ENTRY, "shape": [3]}}, 8), "'a' does not lie where its shape says"),
    "an absurd shape": (header({"a": {**ENTRY, "shape": [1 << 40, 1 << 40]}}, 8), "'a' does not lie where"),
    "a negative shape": (header({"a": {**ENTRY, "shape": [-1, -2]}}, 8), "shapes and offsets are whole numbers"),
    "a gap": (header({"a": {**ENTRY, "data_offsets": [8, 16]}}, 16), "'a' does not lie where"),
    "the same twice": (header({"a": ENTRY, "b": ENTRY}, 8), "'b' does not lie where"),
    "offsets of text": (header({"a": {**ENTRY, "data_offsets": "ab"}}, 8), "shapes and offsets are whole numbers"),
    "too many offsets": (header({"a": {**ENTRY, "data_offsets": [0, 4, 8]}}, 8), "header cannot be read"),
}


@pytest.mark.parametrize("case", FILES.values(), ids=FILES.keys())
def test_safetensors_that_are_broken_are_refused(ours: Ours, tmp_path: Path, case: tuple[bytes, str]) -> None:
    folder, (content, said) = draft().write(tmp_path / "x"), case
    (folder / "adapter_model.safetensors").write_bytes(content)
    assert said in refused(ours, folder)


def bins() -> dict[str, tuple[bytes, str]]:
    def saved(value: Any) -> bytes:
        file = io.BytesIO()
        torch.save(value, file)
        return file.getvalue()

    packed, plain = io.BytesIO(), saved({"a": torch.zeros(10_000)})
    with zipfile.ZipFile(io.BytesIO(plain)) as archive, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as other:
        for name in archive.namelist():
            other.writestr(name, archive.read(name))
    return {
        "empty": (b"", "truncated, corrupt"),
        "cut off": (saved(tensors())[:-200], "truncated, corrupt"),
        "code": (pickle.dumps(os.getcwd), "holds more than tensors"),
        "no map": (saved([torch.zeros(1)]), "a map from names to tensors of floating point"),
        "whole numbers": (saved({"a": torch.zeros(1, dtype=torch.int64)}), "a map from names to tensors of floating"),
        "no tensors": (saved({"a": 1}), "a map from names to tensors of floating point"),
        "compressed": (packed.getvalue(), "its entries are compressed"),
    }


@pytest.mark.parametrize("case", bins().values(), ids=bins().keys())
def test_files_of_torch_that_are_broken_are_refused(ours: Ours, tmp_path: Path, case: tuple[bytes, str]) -> None:
    folder, (content, said) = draft().write(tmp_path / "x"), case
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(content)
    assert said in refused(ours, folder)


def test_files_that_cannot_be_read_are_refused(ours: Ours, tmp_path: Path) -> None:
    assert "adapter_config.json cannot be used: it cannot be read (No such file" in refused(ours, tmp_path / "nowhere")
    folder = draft().write(tmp_path / "x")
    file = folder / "adapter_model.safetensors"
    file.unlink()
    assert "has no tensors: adapter_model.safetensors (or adapter_model.bin) was expected" in refused(ours, folder)
    os.mkfifo(file)
    assert "it is no regular file" in refused(ours, folder)
    file.unlink()
    file.mkdir()
    assert "it is no regular file" in refused(ours, folder)


def test_a_file_larger_than_any_adapter_of_the_model_is_not_read(ours: Ours, tmp_path: Path) -> None:
    folder = draft().write(tmp_path / "x")
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.truncate(1 << 40)  # of nothing: it takes no room
    assert "it has 1099511627776 bytes; an adapter of this model has at most" in refused(ours, folder)
