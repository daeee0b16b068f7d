"""`platform quantize`: its checkpoints have the same logits in transformers as here, and none is left half-written."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationScheme
from lora_rig import random_seqs
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from quire.cli import main
from quire.engine.loading.load import load_model
from quire.hooks import registry
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire_models.loading import tensor_files
from quire_models.loading.checkpoint_writer import ShardWriter
from quire_models.testing import run_tokens
from quire_testing.tiny import tiny_llama, tiny_model


@pytest.fixture(scope="module")
def plugins() -> Registry:
    return registry.load(None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("quantize") / "tiny", seed=5)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    lines = ["What is the largest island?", "Sort these: pear, apple, fig.", "3 + 4 = 7", "Good morning, how are you?"]
    file.write_text("".join(json.dumps({"text": 3 * line}) + "\n" for line in lines))
    return file


def quantize(*words: object) -> int:
    return main(["quantize", *map(str, words)])


def served(folder: Path, seqs: Sequence[Sequence[int]], plugins: Registry) -> list[Tensor]:
    config = ModelConfig(model=str(folder), device="cpu", dtype="float32", activation_bits=16)
    loaded = load_model(config, plugins)
    with torch.inference_mode():
        return run_tokens(loaded.module, loaded.decoder, seqs)


def in_transformers(folder: Path, seqs: Sequence[Sequence[int]]) -> list[Tensor]:
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return [model(torch.tensor([seq])).logits[0] for seq in seqs]


def decompressed(folder: Path, original: Path, seqs: Sequence[Sequence[int]]) -> list[Tensor]:
    """As the library of the format reads it, without transformers, which refuses packed zeros (5.23 with 0.20)."""
    files = tensor_files.find(folder)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    schemes = [QuantizationScheme(**group) for group in config["config_groups"].values()]
    model: Any = AutoModelForCausalLM.from_pretrained(original, dtype=torch.float32).eval()
    with torch.inference_mode():
        for name, parameter in model.named_parameters():
            module = name.removesuffix(".weight")
            parts = {part: files.read(f"{module}.{part}") for part in PARTS if f"{module}.{part}" in files}
            if parts:
                listed = [scheme for scheme in schemes if module in scheme.targets] or schemes
                parameter.copy_(PackedQuantizationCompressor.decompress(parts, listed[0])["weight"])
            elif name in files:
                parameter.copy_(files.read(name))
        return [model(torch.tensor([seq])).logits[0] for seq in seqs]


def divergence(expected: list[Tensor], found: list[Tensor]) -> float:
    """Mean Kullback-Leibler divergence of next tokens."""
    p, q = (torch.cat(logits).double().log_softmax(-1) for logits in (expected, found))
    return float((p.exp() * (p - q)).sum(-1).mean())


PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")

KINDS = {
    "search": [],
    "rtn": ["--method", "rtn"],
    "group of 16": ["--group-size", 16],
    "group that does not divide all": ["--group-size", 64],
    "asymmetric": ["--asymmetric", "--group-size", 32],
    "asymmetric rtn": ["--asymmetric", "--group-size", 32, "--method", "rtn"],
    "8 bits": ["--bits", 8],
    "gptq": ["--method", "gptq", "--group-size", 32],
    "asymmetric gptq": ["--method", "gptq", "--group-size", 32, "--asymmetric"],
    "awq": ["--method", "awq", "--group-size", 32],
    "asymmetric awq": ["--method", "awq", "--group-size", 32, "--asymmetric"],
    "gptq with 8 bits": ["--method", "gptq", "--bits", 8],
}


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_and_quire_read_the_same_model(
    kind: str, folder: Path, texts: Path, plugins: Registry, tmp_path: Path
) -> None:
    words, out, seqs = KINDS[kind], tmp_path / "out", random_seqs(3)
    if "--method" in words and "rtn" not in words:
        words = [*words, "--calibration", texts]
    assert quantize(folder, out, *words) == 0
    theirs = decompressed(out, folder, seqs)
    if "--asymmetric" not in words:
        for found, expected in zip(in_transformers(out, seqs), theirs, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    for found, expected in zip(served(out, seqs, plugins), theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    assert 0 < divergence(served(folder, seqs, plugins), theirs) < (0.01 if 8 in words else 0.5)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM", "OPTForCausalLM"])
@pytest.mark.parametrize("method", ["search", "gptq", "awq"])
def test_other_architectures(architecture: str, method: str, texts: Path, plugins: Registry, tmp_path: Path) -> None:
    special = {"Phi3ForCausalLM": {"pad_token_id": 0}, "OPTForCausalLM": {"ffn_dim": 96, "word_embed_proj_dim": 64}}
    folder, out, seqs = tmp_path / "tiny", tmp_path / "out", random_seqs(2)
    tiny_model(folder, architecture, **special.get(architecture, {}))
    calibration = [] if method == "search" else ["--calibration", texts]
    assert quantize(folder, out, "--method", method, "--group-size", 32, *calibration) == 0
    theirs = in_transformers(out, seqs)
    for found, expected in zip(served(out, seqs, plugins), theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-4)
    assert 0 < divergence(served(folder, seqs, plugins), theirs) < 0.5


@pytest.mark.parametrize("method", ["search", "gptq"])
def test_experts_are_quantized_but_not_their_router(
    method: str, texts: Path, plugins: Registry, tmp_path: Path
) -> None:
    folder, out, seqs = tmp_path / "tiny", tmp_path / "out", random_seqs(2)
    tiny_model(folder, "MixtralForCausalLM", num_local_experts=4)
    calibration = [] if method == "search" else ["--calibration", texts]
    assert quantize(folder, out, "--method", method, "--group-size", 16, *calibration) == 0
    names = set(tensor_files.find(out))
    assert {name.rpartition(".")[2] for name in names if ".experts." in name} == {
        "weight_packed",
        "weight_scale",
        "weight_shape",
    }
    assert any(name.endswith(".gate.weight") for name in names)
    assert 0 < divergence(served(folder, seqs, plugins), served(out, seqs, plugins)) < 0.6


def test_inputs_of_eight_bits_are_in_the_config(folder: Path, plugins: Registry, tmp_path: Path) -> None:
    assert quantize(folder, tmp_path / "out", "--bits", 8, "--activation-bits", 8) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    (group,) = config["config_groups"].values()
    assert (config["format"], group["input_activations"]["dynamic"]) == ("int-quantized", True)
    seqs = random_seqs(1)
    close = zip(served(tmp_path / "out", seqs, plugins), in_transformers(tmp_path / "out", seqs), strict=True)
    assert all((found - expected).abs().mean() < 0.05 for found, expected in close)


def test_patterns_leave_matrices_out(folder: Path, plugins: Registry, tmp_path: Path) -> None:
    assert quantize(folder, tmp_path / "out", "--ignore", "down_proj", "--ignore", "model.layers.0.*") == 0
    names = set(tensor_files.find(tmp_path / "out"))
    packed = {name for name in names if name.endswith(".weight_packed")}
    assert "lm_head.weight_packed" in packed
    assert not any("down_proj" in name or "layers.0" in name for name in packed)
    seqs = random_seqs(1)
    torch.testing.assert_close(
        served(tmp_path / "out", seqs, plugins), in_transformers(tmp_path / "out", seqs), rtol=0, atol=2e-4
    )


def test_other_files_come_along(folder: Path, tmp_path: Path) -> None:
    assert quantize(folder, tmp_path / "new" / "out") == 0
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            assert (tmp_path / "new" / "out" / file.name).read_bytes() == file.read_bytes()
    assert (tmp_path / "new" / "out" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_large_checkpoints_are_written_in_shards(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(10, 10) for i in range(7)}
    writer = ShardWriter(tmp_path, shard_bytes=1000)
    for name, tensor in tensors.items():
        writer.add(name, tensor)
    writer.finish()
    files = tensor_files.find(tmp_path)
    assert len(files.files) == 4
    assert all(torch.equal(files.read(name), tensor) for name, tensor in tensors.items())
    assert json.loads((tmp_path / "model.safetensors.index.json").read_text())["metadata"]["total_size"] == 2800


# --- what is refused -------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert quantize(*words) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bits", 8, "--group-size", 32], "--bits 8 has one scale for each output"),
        (["--bits", 8, "--asymmetric"], "--bits 8 has one scale for each output"),
        (["--activation-bits", 8], "--activation-bits 8 needs --bits 8"),
        (["--group-size", 24], "must be a multiple of 16; got 24"),
        (["--group-size", 0], "must be a multiple of 16; got 0"),
        (["--method", "gptq"], "--method gptq needs --calibration FILE"),
        (["--calibration", "x.txt"], "--calibration is for --method gptq and awq"),
        (["--method", "awq", "--calibration", "absent.txt"], "absent.txt cannot be read"),
        (["--method", "awq", "--calibration", "x.txt", "--samples", 0], "--samples must be at least 1"),
        (["--ignore", "no_such"], "--ignore no_such: the model has no matrix of that name"),
    ],
)
def test_arguments_that_cannot_work_are_refused(
    words: list[object], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, folder, tmp_path / "out", *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", "it has no text"),
        ("a.txt", b"\xff\xfe\xfa", "cannot be read"),
        ("a.jsonl", '{"text": "good"}\n[1]\n', "line 2 is no JSON object with a `text`"),
        ("a.jsonl", '{"text": 3}', "line 1 is no JSON object with a `text`"),
        ("a.jsonl", "{" * 100_000, "line 1 is no JSON object with a `text`"),
    ],
)
def test_calibration_files_that_cannot_be_used_are_refused(
    name: str, content: str | bytes, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    words = ["--method", "gptq", "--calibration", file]
    assert message in refused(capsys, folder, tmp_path / "out", *words)
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_with_files_is_not_written_to(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    assert "is not an empty folder" in refused(capsys, folder, tmp_path / "out")
    assert (tmp_path / "out" / "file").read_text() == "mine"


def test_an_empty_folder_is_filled(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert quantize(folder, tmp_path / "out") == 0
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.parametrize("method", ["search", "gptq", "awq"])
def test_nothing_is_left_of_a_model_that_cannot_be_quantized(
    method: str, folder: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tiny_llama(tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    calibration = [] if method == "search" else ["--calibration", texts]
    error = refused(capsys, broken, tmp_path / "out", "--method", method, *calibration)
    assert "model.layers.1.mlp" in error
    assert list(tmp_path.iterdir()) == [broken]


def test_what_has_no_linear_layers_of_its_own_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantize(folder, tmp_path / "once")
    assert "is quantized already" in refused(capsys, tmp_path / "once", tmp_path / "twice")
    tiny_model(tmp_path / "gpt2", "GPT2LMHeadModel", n_embd=64, n_layer=2, n_head=4, n_positions=512)
    assert "has no matrices to quantize" in refused(capsys, tmp_path / "gpt2", tmp_path / "out")
