"""A checkpoint that cannot be read is refused with the tensor, or the field of the config, and the reason."""

from typing import Any

import pytest
import torch
from quantized_tensors import (
    Stored,
    awq_stored,
    bnb4_stored,
    bnb8_stored,
    bnb_state,
    fp8_stored,
    gptq_stored,
    mxfp4_stored,
)
from torch import Tensor

from quire.errors import CheckpointError

FIELDS: list[tuple[Stored, dict[str, Any], str]] = [
    (gptq_stored(), {"bits": 5}, "bits is 5, expected 2, 3, 4 or 8"),
    (gptq_stored(), {"bits": "4"}, "bits is '4', expected an integer"),
    (gptq_stored(), {"group_size": 0}, "group_size is 0"),
    (gptq_stored(), {"group_size": 24}, "a.b.qzeros has 3 groups, expected 4 of 24 inputs"),
    (gptq_stored(), {"group_size": -1}, "a.b.qzeros has 3 groups, expected 1 of 96 inputs"),
    (gptq_stored(size=24), {}, "a.b.scales has scales for groups of 24 of 96 inputs"),
    (gptq_stored(), {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin', expected gptq or gptq_v2"),
    (gptq_stored(), {"is_marlin_format": True}, "is_marlin_format = True is not supported"),
    (gptq_stored(), {"bits": 8}, "a.b.qzeros has 4 columns, which do not hold 32 zeros of 8 bits"),
    (awq_stored(), {"bits": 8}, "bits is 8, expected 4"),
    (awq_stored(), {"zero_point": False}, "zero_point is False"),
    (awq_stored(), {"version": "gemv_fast"}, "version is 'gemv_fast', expected gemm or gemv"),
    (awq_stored(), {"group_size": 64}, r"a.b.qzeros has shape \[3, 4\], expected \[2, 4\]"),
    (fp8_stored(), {"fmt": "e5m2"}, "fmt is 'e5m2'"),
    (fp8_stored(), {"expert_dtype": "fp4"}, "expert_dtype is 'fp4'"),
    (fp8_stored(), {"weight_block_size": [128]}, "weight_block_size is .128., expected the two sizes"),
    (fp8_stored(), {"weight_block_size": [16, 16]}, r"scale_inv has shape \[\], expected \[2, 6\] for blocks"),
    (bnb4_stored(), {"load_in_8bit": True}, "one of load_in_4bit and load_in_8bit must be true"),
    (bnb4_stored(), {"bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type is 'int4'"),
    (bnb4_stored(size=24), {}, "has blocks of 24, which do not divide rows of 96 in multiples of 16"),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "fields", "sentence"), FIELDS)
def test_a_config_that_does_not_fit_is_refused(stored: Stored, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        stored.with_config(**fields).read()


NAN, STATE = float("nan"), "a.b.weight.quant_state.bitsandbytes__nf4"
FLOAT8_NAN = torch.full((32, 96), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
TENSORS: list[tuple[Stored, str, Tensor | None, str]] = [
    (gptq_stored(), "a.b.qzeros", None, "a.b.qweight: the checkpoint has no a.b.qzeros beside it"),
    (gptq_stored(), "a.b.scales", torch.full((3, 32), NAN), "a.b.scales has values that are NaN, infinite"),
    (gptq_stored(), "a.b.scales", torch.ones(32, 3), r"a.b.scales has shape \[32, 3\], expected \[3, 32\]"),
    (gptq_stored(), "a.b.scales", torch.ones(3, 32, dtype=torch.int32), "a.b.scales is int32, expected float16 or"),
    (gptq_stored(), "a.b.qweight", torch.zeros(12, 32), "a.b.qweight is float32, expected int32"),
    (gptq_stored(), "a.b.g_idx", torch.full((96,), 3).int(), "a.b.g_idx names groups outside of 0 to 2"),
    (gptq_stored(), "a.b.g_idx", torch.arange(96).int() // 48, "a.b.g_idx has groups that are not of 32 inputs each"),
    (gptq_stored(), "a.b.g_idx", torch.arange(64).int(), "a.b.qweight has 12 rows, which do not hold 64 inputs"),
    (awq_stored(), "a.b.scales", None, "a.b.qweight: the checkpoint has no a.b.scales beside it"),
    (awq_stored(), "a.b.scales", -torch.ones(3, 32), "a.b.scales has scales below zero"),
    (fp8_stored(), "a.b.weight", None, "a.b.weight_scale_inv: the checkpoint has no a.b.weight beside it"),
    (fp8_stored(), "a.b.weight", torch.zeros(32, 96), "a.b.weight is float32, expected float8_e4m3fn"),
    (fp8_stored(), "a.b.weight", FLOAT8_NAN, "a.b.weight has values that are NaN"),
    (fp8_stored(), "a.b.weight_scale", torch.ones(1), "a.b.weight has another scale"),
    (fp8_stored(), "a.b.weight_scale_inv", torch.ones(31), r"expected one value or \[32, 1\]"),
    (fp8_stored(), "a.b.weight_scale_inv", torch.tensor(255, dtype=torch.uint8), "has values that are NaN"),
    (mxfp4_stored(), "e.gate_up_proj_scales", None, "_blocks: the checkpoint has no e.gate_up_proj_scales"),
    (mxfp4_stored(), "e.gate_up_proj_scales", torch.full((3, 32, 3), 255, dtype=torch.uint8), "that are NaN"),
    (mxfp4_stored(), "e.gate_up_proj_blocks", torch.zeros(3, 32, 6, 8), "has blocks of 8 bytes, expected 16"),
    (bnb8_stored(), "a.b.weight", torch.zeros(32, 96, dtype=torch.uint8), "a.b.weight is uint8, expected int8"),
    (bnb8_stored(), "a.b.weight_format", torch.tensor(1, dtype=torch.uint8), "a.b.weight_format is not 0"),
    (bnb8_stored(), "a.b.SCB", torch.ones(31), "a.b.SCB has 31 values, expected 32"),
    (bnb4_stored(), "a.b.weight.absmax", None, "no a.b.weight.absmax beside it"),
    (bnb4_stored(), "a.b.weight.absmax", torch.ones(95), r"a.b.weight.absmax has shape \[95\], expected \[96\]"),
    (bnb4_stored(nested=True), "a.b.weight.nested_quant_map", None, "nested_absmax has no nested_quant_map beside it"),
    (bnb4_stored(), STATE, torch.zeros(5000, dtype=torch.uint8), "expected at most 4096 bytes"),
    (bnb4_stored(), STATE, torch.full((4000,), ord("["), dtype=torch.uint8), "is not JSON"),
    (bnb4_stored(), STATE, bnb_state(shape=[32, -96], blocksize=32), "has the shape -96, expected a size"),
    (bnb4_stored(), STATE, bnb_state(shape=[32, 96]), "has the blocksize None, expected a size"),
    (bnb4_stored(), STATE, bnb_state(shape=[64, 96], blocksize=32), "has 1536 bytes, which do not hold 64 x 96 codes"),
]  # fmt: skip


@pytest.mark.parametrize(("stored", "name", "tensor", "sentence"), TENSORS)
def test_a_tensor_that_does_not_fit_is_refused_by_its_name(
    stored: Stored, name: str, tensor: Tensor | None, sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        stored.with_tensor(name, tensor).read()
