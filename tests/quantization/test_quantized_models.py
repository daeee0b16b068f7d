"""Models with quantized checkpoints have the log-probabilities of transformers on their dequantized weights."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_checkpoints import compressed, config, scheme
from quantized_models import QuantizedModel, Store
from quantized_tensors import Stored, awq_stored, bnb4_stored, bnb8_stored, fp8_stored, gptq_stored
from transformers import LlamaForCausalLM

from quire.errors import CheckpointError

Shape = tuple[int, int]
GROUPED = {"strategy": "group", "group_size": 32}
FORMATS: dict[str, Callable[[Shape], Stored]] = {
    "gptq, 4 bits": lambda shape: gptq_stored(4, 32, shape),
    "gptq, 8 bits": lambda shape: gptq_stored(8, -1, shape, asymmetric=False),
    "gptq in order": lambda shape: gptq_stored(4, 32, shape, order=torch.randperm(shape[1]) // 32),
    "awq": lambda shape: awq_stored(32, shape),
    "compressed-tensors, w4a16": lambda shape: compressed(scheme(**GROUPED), shape),
    "compressed-tensors, w4a16 asymmetric": lambda shape: compressed(scheme(symmetric=False, **GROUPED), shape),
    "compressed-tensors, w8a16": lambda shape: compressed(scheme(num_bits=8, strategy="channel"), shape),
    "compressed-tensors, w8a8": lambda shape: compressed(
        scheme(format="int-quantized", num_bits=8, strategy="channel"), shape
    ),
    "compressed-tensors, float8": lambda shape: compressed(
        scheme(format="float-quantized", num_bits=8, type="float", strategy="channel"), shape
    ),
    "fp8, one scale": fp8_stored,
    "fp8, blocks": lambda shape: fp8_stored(shape, [32, 32]),
    "bitsandbytes, nf4": lambda shape: bnb4_stored(shape, 32),
    "bitsandbytes, nested": lambda shape: bnb4_stored(shape, 64 if shape[1] % 64 == 0 else 32, nested=True),
    "bitsandbytes, int8": bnb8_stored,
}
SIZES: dict[str, dict[str, Any]] = {
    "Qwen2ForCausalLM": {},
    "Gemma3ForCausalLM": {"sliding_window": 9, "query_pre_attn_scalar": 24, "sliding_window_pattern": 2},
    "MixtralForCausalLM": {"num_local_experts": 4},
    "Qwen3MoeForCausalLM": {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def projections(stored: Callable[[Shape], Stored]) -> Store:
    """Every matrix of the blocks is quantized; the head and the embeddings are not."""

    def store(module: str, shape: Shape) -> Stored | None:
        last = module.rpartition(".")[2]
        return stored(shape) if last.endswith("proj") or last in ("w1", "w2", "w3") else None

    return store


def agree(model: QuantizedModel, tolerance: float = 1e-4, **settings: Any) -> None:
    torch.testing.assert_close(model.served(**settings), model.expected(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", FORMATS)
def test_a_llama_of_each_format(name: str, tmp_path: Path) -> None:
    model = QuantizedModel(tmp_path, "LlamaForCausalLM", projections(FORMATS[name]))
    agree(model, activation_bits=16)
    rounded = model.served()
    assert (rounded - model.expected()).abs().mean() < 0.05


@pytest.mark.parametrize(
    "name",
    ["compressed-tensors, w4a16", "compressed-tensors, w8a8", "compressed-tensors, float8", "fp8, blocks"],
)
def test_transformers_makes_the_same_of_the_same_files(name: str, tmp_path: Path) -> None:
    model = QuantizedModel(tmp_path, "LlamaForCausalLM", projections(FORMATS[name]))
    model.twin = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    agree(model, activation_bits=16)


@pytest.mark.parametrize("architecture", SIZES)
@pytest.mark.parametrize(
    "name", ["gptq, 4 bits", "awq", "compressed-tensors, w8a8", "fp8, blocks", "bitsandbytes, nf4"]
)
def test_other_families_and_mixtures_of_experts(architecture: str, name: str, tmp_path: Path) -> None:
    model = QuantizedModel(tmp_path, architecture, projections(FORMATS[name]), **SIZES[architecture])
    agree(model, activation_bits=16)


@pytest.mark.parametrize(
    "name", ["gptq, 4 bits", "awq", "compressed-tensors, w8a8", "fp8, blocks", "bitsandbytes, nf4"]
)
def test_an_encoder(name: str, tmp_path: Path) -> None:
    def store(module: str, shape: Shape) -> Stored | None:
        return FORMATS[name](shape) if ".layer." in module else None

    model = QuantizedModel(tmp_path, "BertModel", store)
    torch.testing.assert_close(model.embedding(activation_bits=16), model.expected_embedding(), rtol=0, atol=1e-4)


def test_schemes_may_differ_within_a_fused_matrix_and_leave_modules_out(tmp_path: Path) -> None:
    schemes = [
        scheme(["re:.*(q_proj|gate_proj)"], **GROUPED),
        scheme(["re:.*k_proj"], num_bits=8, strategy="channel"),
        scheme(["re:.*(v_proj|up_proj)"], strategy="group", group_size=16, symmetric=False),
        scheme(["re:.*o_proj"], format="float-quantized", num_bits=8, type="float", strategy="tensor"),
        scheme(["re:.*layers.0.mlp.down_proj"], format="int-quantized", num_bits=8, strategy="channel"),
    ]

    def store(module: str, shape: Shape) -> Stored | None:
        for group in schemes:
            if re.match(group["targets"][0].removeprefix("re:"), module):
                stored = compressed(group, shape)
                return stored.with_config(**config(*schemes, format="mixed-precision", ignore=["lm_head"]))
        return None

    agree(QuantizedModel(tmp_path, "LlamaForCausalLM", store), activation_bits=16)


def test_the_head_and_the_table_of_embeddings_may_be_quantized(tmp_path: Path) -> None:
    schemes = [scheme(**GROUPED), scheme(["Embedding"], num_bits=8, strategy="channel")]

    def store(module: str, shape: Shape) -> Stored:
        return compressed(schemes["embed" in module], shape).with_config(**config(*schemes))

    agree(QuantizedModel(tmp_path, "LlamaForCausalLM", store), activation_bits=16)


def test_a_gptq_head_is_quantized(tmp_path: Path) -> None:
    def store(module: str, shape: Shape) -> Stored | None:
        return None if "embed" in module else gptq_stored(4, 32, shape)

    agree(QuantizedModel(tmp_path, "LlamaForCausalLM", store), activation_bits=16)


def test_a_damaged_tensor_stops_the_start_with_its_name(tmp_path: Path) -> None:
    def store(module: str, shape: Shape) -> Stored | None:
        stored = gptq_stored(4, 32, shape) if module.endswith("up_proj") else None
        return stored and stored.with_tensor("a.b.scales", torch.full((shape[1] // 32, shape[0]), float("nan")))

    model = QuantizedModel(tmp_path, "LlamaForCausalLM", store)
    with pytest.raises(CheckpointError, match=r"model.layers.0.mlp.up_proj.scales has values that are NaN"):
        model.served()
