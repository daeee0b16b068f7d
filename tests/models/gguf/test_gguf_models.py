"""GGUF files written from transformers models: their config, and their tensors in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_cases import CASES, MIXED, Case, in_transformers, outputs, quantized
from gguf_models import all_f32, write_model

from quire.errors import CheckpointError
from quire_models.gguf.file.parts import open_parts
from quire_models.gguf.folder import open_tensors


@pytest.mark.parametrize("name", CASES)
def test_config_and_tensors_of_a_file_are_those_of_the_model_it_was_written_from(tmp_path, name):
    case = CASES[name]
    model = case.model()
    write_model(model, tmp_path / "model.gguf", **case.metadata)
    again = in_transformers(case, tmp_path / "model.gguf", tmp_path)
    assert torch.allclose(outputs(again), outputs(model), atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen2", "qwen3 moe", "gemma3", "bert"])
@pytest.mark.parametrize("chosen", [MIXED, quantized({"_inp": Type.F32}, Type.Q4_0), quantized({}, Type.BF16)])
def test_quantized_tensors_are_what_the_package_gguf_dequantizes(tmp_path, name, chosen):
    case = CASES[name]
    model = case.model()
    path = tmp_path / "model.gguf"
    write_model(model, path, chosen, **case.metadata)
    read = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    plain = tmp_path / "plain.gguf"
    _rewrite(path, plain, read)
    expected = in_transformers(case, plain, tmp_path / "expected")
    assert torch.equal(outputs(in_transformers(case, path, tmp_path / "found")), outputs(expected))
    assert not torch.allclose(outputs(expected), outputs(model), atol=1e-5)  # the types are as coarse as they are


def _rewrite(path: Path, plain: Path, read: dict[str, Any]) -> None:
    """Write the file anew with dequantized tensors."""
    fields = gguf.GGUFReader(path).fields
    writer = gguf.GGUFWriter(str(plain), fields["general.architecture"].contents())
    for key, value in fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            element = value.types[-1] if value.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, value.contents(), value.types[0], element)
    for name, tensor in read.items():
        writer.add_tensor(name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(("theta", "high"), [(5e5, 4.0), (1e4, 4.0), (5e5, 6.0)])
def test_divisors_of_frequencies_give_the_rotation_that_they_were_made_from(tmp_path, theta, high):
    """The converter writes Llama 3's scaling as divisors; others than Llama 3's own become those of LongRoPE."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {**LLAMA3, "rope_theta": theta, "high_freq_factor": high}
    case = Case("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": rope, "head_dim": 64})
    model = case.model()
    config = model.config
    plain = theta ** (-torch.arange(0, 64, 2) / 64)
    divisors = plain / ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))[0]
    write_model(model, tmp_path / "model.gguf", extra={"rope_freqs.weight": divisors})
    again = in_transformers(case, tmp_path / "model.gguf", tmp_path)
    assert again.config.rope_parameters["rope_type"] == ("llama3" if high == 4.0 else "longrope")
    assert torch.allclose(outputs(again), outputs(model), atol=1e-5)


def test_two_tables_of_factors_are_longrope(tmp_path):
    factors = {"short_factor": [1.0 + i / 9 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 16, **factors}
    config = {"rope_parameters": rope, "original_max_position_embeddings": 16}
    case = Case("Phi3ForCausalLM", "Phi3Config", config, {"phi3__rope__scaling__original_context_length": 16})
    model = case.model()
    tables = {f"rope_factors_{name}.weight": torch.tensor(factors[f"{name}_factor"]) for name in ("short", "long")}
    write_model(model, tmp_path / "model.gguf", extra=tables, **case.metadata)
    again = in_transformers(case, tmp_path / "model.gguf", tmp_path)
    assert torch.allclose(outputs(again), outputs(model), atol=1e-5)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ("blk.0.ssm_conv1d.weight", "'blk.0.ssm_conv1d.weight', which llama models lack"),
        ("blk.0.attn_q.scale", "'blk.0.attn_q.scale', which llama models lack"),
        ("vision.patch.weight", "'vision.patch.weight'"),
    ],
)
def test_a_tensor_that_the_architecture_lacks_is_named(tmp_path, tensor, words):
    write_model(CASES["llama"].model(), tmp_path / "model.gguf", extra={tensor: torch.ones(4)})
    with pytest.raises(CheckpointError, match=words):
        open_tensors(open_parts(tmp_path / "model.gguf"))


def test_an_architecture_that_cannot_be_read_is_named(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "rwkv7")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"architecture 'rwkv7'; GGUF files can be read of bert, .* qwen2"):
        open_tensors(open_parts(tmp_path / "model.gguf"))


def test_heads_that_do_not_divide_the_rows_are_refused(tmp_path):
    write_model(CASES["llama"].model(), tmp_path / "model.gguf", all_f32, llama__attention__head_count=5)
    with pytest.raises(CheckpointError, match=r"'blk.0.attn_q.weight' has 64 rows, which 5 heads"):
        open_tensors(open_parts(tmp_path / "model.gguf"))
