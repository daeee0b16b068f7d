"""Models that are quantized when they are loaded: the logits of transformers and peft on the dequantized weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lora_rig import Base, Ours, random_seqs
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from quire import LLM, SamplingParams
from quire.engine.loading.load import load_model
from quire.errors import CheckpointError, ConfigError
from quire.hooks import registry
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire_kernels.quantized import QuantizedMatrix
from quire_plugins.quantization import fp8_at_load
from quire_plugins.quantization.scale_search import CodeGrid, group_size_for, quantize
from quire_testing.ops.quantization import check_quantization
from quire_testing.tiny import tiny_llama

METHODS = ("int4", "int4-asym", "fp8")
SIX_BITS = ("q_proj", "k_proj", "v_proj", "lm_head")


@pytest.fixture(scope="module")
def plugins() -> Registry:
    return registry.load(None)


def quantized(method: str, name: str, weight: Tensor, size: int = 32) -> QuantizedMatrix:
    if method == "fp8":
        return fp8_at_load.quantize(weight)
    size = group_size_for(weight.shape[1], size)
    is_sensitive = name.rpartition(".")[2] in SIX_BITS
    return quantize(weight, CodeGrid(6, size) if is_sensitive else CodeGrid(4, size, method == "int4-asym"))


class Dequantized(Base):
    """A tiny model; the reference has the weights that its quantized matrices stand for."""

    def __init__(self, folder: Path, method: str, size: int = 32, **config: Any) -> None:
        self._method, self._size = "", size
        super().__init__(folder, "LlamaForCausalLM", **config)
        self._method = method

    def reference(self) -> Any:
        model = super().reference()
        for name, module in model.named_modules() if self._method else ():
            if isinstance(module, nn.Linear):
                found = quantized(self._method, name, module.weight, self._size)
                module.weight = nn.Parameter(found.dequantized())
        return model


def agree(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_logits_with_and_without_adapters(method: str, tmp_path: Path, plugins: Registry) -> None:
    base = Dequantized(tmp_path / "base", method)
    adapter, seqs = base.adapter("one", r=4, target_modules=["q_proj", "down_proj"]), random_seqs(3)
    ours = Ours(base, found=plugins, quantization=method, activation_bits=16)
    loaded = ours.lora.load("one", adapter)
    found = ours.logits(seqs, [{}, {loaded: 1.0}, {loaded: 1.0}])
    agree(found[:1], base.oracle(None, seqs[:1]))
    agree(found[1:], base.oracle(adapter, seqs[1:]))


@pytest.mark.parametrize(("size", "intermediate_size"), [(16, 96), (64, 96), (128, 90)])
def test_groups_of_other_sizes(size: int, intermediate_size: int, tmp_path: Path, plugins: Registry) -> None:
    base, seqs = Dequantized(tmp_path / "base", "int4", size, intermediate_size=intermediate_size), random_seqs(2)
    ours = Ours(base, found=plugins, quantization="int4", activation_bits=16, quantization_group_size=size)
    agree(ours.logits(seqs, [{}, {}]), base.oracle(None, seqs))


@pytest.mark.parametrize("method", METHODS)
def test_rounded_inputs_change_little(method: str, tmp_path: Path, plugins: Registry) -> None:
    base, seqs = Dequantized(tmp_path / "base", method), random_seqs(2)
    ours = Ours(base, found=plugins, quantization=method)
    for found, expected in zip(ours.logits(seqs, [{}, {}]), base.oracle(None, seqs), strict=True):
        assert (found.log_softmax(-1) - expected.log_softmax(-1)).abs().mean() < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_the_library_answers(method: str, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "tiny")
    with LLM(model=str(folder), quantization=method, device="cpu") as llm:
        (output,) = llm.generate(
            ["hello"], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), use_tqdm=False
        )
    assert len(output.outputs[0].token_ids) == 5


@pytest.mark.parametrize("method", METHODS)
def test_the_methods_conform(method: str, plugins: Registry) -> None:
    record = plugins.by_hook("quire_quantizations")[method]
    check_quantization(record, tolerance=0.05 if method == "fp8" else 0.25)


@pytest.mark.parametrize("method", METHODS)
def test_a_weight_that_is_not_finite_is_refused_by_the_name_of_its_matrix(
    method: str, tmp_path: Path, plugins: Registry
) -> None:
    folder = tiny_llama(tmp_path / "tiny")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"blocks\.1\.mlp\.down cannot be quantized: a weight is not finite"):
        load_model(ModelConfig(model=str(folder), quantization=method, device="cpu"), plugins)


def test_fp8_takes_no_group_size(tmp_path: Path, plugins: Registry) -> None:
    folder = tiny_llama(tmp_path / "tiny")
    config = ModelConfig(model=str(folder), quantization="fp8", quantization_group_size=32, device="cpu")
    with pytest.raises(ConfigError, match="one scale for each output channel"):
        load_model(config, plugins)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"quantization_group_size": 32}, "leave the group size out"),
        ({"activation_bits": 16}, "rounds inputs to 8 bits"),
    ],
    ids=["group size", "activation bits"],
)
def test_int8_refuses_settings_that_it_does_not_follow(
    tmp_path: Path, plugins: Registry, setting: dict[str, int], reason: str
) -> None:
    folder = tiny_llama(tmp_path / "tiny")
    with pytest.raises(ConfigError, match=reason):
        load_model(ModelConfig(model=str(folder), quantization="int8", device="cpu", **setting), plugins)
