"""Each quantized checkpoint format is read into matrices that stand for the same weights as the tensors."""

import pytest
import torch
from quantized_tensors import (
    Stored,
    awq_stored,
    bnb4_stored,
    bnb8_stored,
    dense,
    fp8_stored,
    gptq_stored,
    mxfp4_stored,
)
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def agree(stored: Stored) -> None:
    found = dense(stored.read())
    assert found.keys() == stored.weights.keys()
    for name, weight in stored.weights.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("size", [-1, 16, 32])
def test_gptq_of_all_bits_versions_and_group_sizes(bits: int, v2: bool, size: int) -> None:
    agree(gptq_stored(bits, size, v2=v2))
    agree(gptq_stored(bits, size, v2=v2, asymmetric=False))


def test_a_symmetric_gptq_matrix_needs_no_offsets() -> None:
    matrix = gptq_stored(asymmetric=False).read()["a.b.weight"]
    assert matrix.zero == 8
    assert matrix.offsets is None


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_gptq_with_inputs_in_the_order_of_their_activations(bits: int) -> None:
    groups = torch.randperm(96) // 32
    stored = gptq_stored(bits, order=groups)
    matrix = stored.read()["a.b.weight"]
    assert torch.equal(groups[matrix.order], torch.arange(96) // 32)
    agree(stored)


def test_a_trivial_order_of_gptq_is_no_order() -> None:
    assert gptq_stored(order=torch.arange(96) // 32).read()["a.b.weight"].order is None


def test_an_empty_order_of_gptq_without_act_order_is_no_order() -> None:
    stored = gptq_stored()
    agree(stored.with_tensor("a.b.g_idx", torch.zeros(96, dtype=torch.int32)))
    agree(stored.with_tensor("a.b.g_idx", None))


def test_gptq_matrices_of_several_bits_and_groups_in_one_checkpoint() -> None:
    first, second = gptq_stored(4, 32), gptq_stored(8, 48)
    both = Stored(first.config | {"dynamic": {"a.b.*": {"bits": 8, "group_size": 48}}}, dict(first.tensors), {})
    both.tensors |= {name.replace("a.b", "c"): tensor for name, tensor in second.tensors.items()}
    both.weights |= {**first.weights, "c.weight": second.weights["a.b.weight"]}
    agree(both)


def test_groups_that_do_not_divide_the_inputs_become_smaller_groups() -> None:
    stored = gptq_stored(4, 64, (32, 96))
    assert stored.read()["a.b.weight"].group_size == 32
    agree(stored)


def test_zeros_below_one_of_the_first_gptq_format_borrow_from_the_next() -> None:
    stored = gptq_stored(v2=True)
    words = stored.tensors["a.b.qzeros"]
    zeroed = stored.with_tensor("a.b.qzeros", words & ~15)  # some zeros are 0
    first = zeroed.with_config(checkpoint_format="gptq").with_tensor("a.b.qzeros", (words & ~15) - 0x11111111)
    assert torch.equal(dense(first.read())["a.b.weight"], dense(zeroed.read())["a.b.weight"])


@pytest.mark.parametrize("gemv", [False, True])
@pytest.mark.parametrize("size", [-1, 16, 32])
def test_awq_of_both_layouts_and_all_group_sizes(gemv: bool, size: int) -> None:
    agree(awq_stored(size, gemv=gemv))


def test_old_names_of_the_fields_of_awq() -> None:
    stored = awq_stored()
    stored.config = {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}
    agree(stored)


@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_fp8_with_a_scale_for_the_tensor_or_for_each_channel(name: str, per_channel: bool) -> None:
    stored = fp8_stored(per_channel=per_channel)
    stored.tensors[f"a.b.{name}"] = stored.tensors.pop("a.b.weight_scale_inv")
    agree(stored)
    agree(stored.with_tensor("a.b.input_scale", torch.tensor(2.0)))


@pytest.mark.parametrize("shape", [(128, 256), (200, 384), (33, 192), (8, 72)])
def test_fp8_blocks_equal_those_of_transformers(shape: tuple[int, int]) -> None:
    stored = fp8_stored(shape, [128, 128] if shape[1] % 128 == 0 else [16, 48] if shape[1] == 192 else [128, 128])
    agree(stored)
    if not shape[0] % 128 and not shape[1] % 128:
        oracle = Fp8Dequantize(None)._dequantize_one(*stored.tensors.values(), output_dtype=torch.float32)
        assert torch.equal(dense(stored.read())["a.b.weight"], oracle)


def test_fp8_scales_may_be_exponents() -> None:
    stored = fp8_stored((256, 256), [128, 128])
    exponents = torch.randint(110, 130, (2, 2), dtype=torch.uint8)
    stored.tensors["a.b.weight_scale_inv"] = exponents
    oracle = Fp8Dequantize(None)._dequantize_one(*stored.tensors.values(), output_dtype=torch.float32)
    assert torch.equal(dense(stored.read())["a.b.weight"], oracle)
    stored.tensors["a.b.weight_scale_inv"] = exponents.view(torch.float8_e8m0fnu)
    assert torch.equal(dense(stored.read())["a.b.weight"], oracle)


@pytest.mark.parametrize("size", [32, 64, 96, 192])
@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes_of_four_bits(size: int, nested: bool) -> None:
    agree(bnb4_stored(size=size, nested=nested))


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32, torch.int8])
def test_bitsandbytes_codes_may_be_stored_as_numbers_of_other_types(storage: torch.dtype) -> None:
    agree(bnb4_stored(storage=storage))


def test_bitsandbytes_of_eight_bits() -> None:
    agree(bnb8_stored())


def test_mxfp4_experts_equal_those_of_transformers() -> None:
    stored = mxfp4_stored()
    agree(stored)
    oracle = convert_moe_packed_tensors(*stored.tensors.values(), dtype=torch.float32)
    assert torch.equal(dense(stored.read())["e.gate_up_proj"].transpose(1, 2), oracle)


def test_a_table_of_integers_makes_the_products_of_mxfp4_exact_in_int8() -> None:
    matrix = mxfp4_stored().read()["e.gate_up_proj"][0]
    assert sorted(matrix.table.abs().int().unique().tolist()) == [0, 1, 2, 3, 4, 6, 8, 12]


def test_tensors_beside_the_quantized_ones_are_left_alone() -> None:
    stored = gptq_stored().with_tensor("a.b.bias", torch.zeros(32)).with_tensor("norm.weight", torch.ones(4))
    assert stored.read().keys() == {"a.b.weight"}
