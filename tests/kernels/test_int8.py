"""Weights as bytes: their scales, and products."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from cpu_rig import FLOATS
from torch import Tensor

from quire_kernels import int8, reference
from quire_kernels.cpu.ops import CpuOps

pytestmark = pytest.mark.usefixtures("seeded")


# --- bytes and their scales ------------------------------------------------------------------------------


def test_a_vector_is_bytes_times_a_scale_and_the_largest_becomes_127() -> None:
    whole, scale = int8.quantize(torch.tensor([[2.0, -4.0, 0.0, 1.0], [0.0] * 4, [1e-38] * 4]))
    assert whole.tolist() == [[64, -127, 0, 32], [0] * 4, [0] * 4]
    torch.testing.assert_close(scale[:, 0], torch.tensor([4 / 127, 0.0, 0.0]))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_row_and_no_other(wrong: float) -> None:
    x = torch.ones(3, 70)
    x[1, 69] = wrong
    y = reference.linear_int8(torch.ones(5, 70), None)(x)
    assert y[1].isnan().all()
    torch.testing.assert_close(y[[0, 2]], torch.full((2, 5), 70.0))


# --- products --------------------------------------------------------------------------------------------

MATRICES = [(96, 64), (100, 70), (33, 65), (1, 1), (2, 3), (70, 33), (48, 1537), (130, 576)]
"""(outputs, inputs): multiples of a panel's 32 and 64 and others; one whose rows take more than one block."""
COUNTS = (1, 2, 3, 4, 5, 11, 12, 13, 16, 17, 31, 32, 33, 65, 200)


@cache
def factors(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(outputs, inputs, generator=made), torch.randn(outputs, generator=made)
    return weight.to(dtype), bias.to(dtype), torch.randn(max(COUNTS), inputs, generator=made).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_a_product_is_the_reference_to_the_last_bit_among_any_number_of_rows(
    cpp: CpuOps, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight, bias, x = factors(*shape, dtype)
    want = reference.linear_int8(weight, None)(x, True)
    for gated in (False, True):
        product = cpp.linear_int8(weight, None, gated)
        for count in COUNTS:
            assert torch.equal(product(x[:count], True), want[:count]), (gated, count)
            assert torch.equal(product(x[-count:]), want[-count:].to(dtype)), (gated, count)
        added = cpp.linear_int8(weight, bias, gated)(x, True)
        torch.testing.assert_close(added, want + bias.float(), atol=1e-5, rtol=1e-5)


def test_a_product_is_near_that_of_the_original_weight(cpp: CpuOps) -> None:
    weight, bias, x = factors(130, 576, torch.float32)
    exact = reference.linear(weight, bias)(x)
    off = (cpp.linear_int8(weight, bias)(x) - exact).norm() / exact.norm()
    assert 0.001 < off < 0.015, "a step is 1/127 of the largest: about one hundredth of a usual element"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("gated", [False, True])
def test_packed_bytes_give_the_weight_back_as_they_have_it(cpp: CpuOps, gated: bool, dtype: torch.dtype) -> None:
    weight = factors(100, 70, dtype)[0]
    want, ids = reference.linear_int8(weight, None), torch.tensor([99, 0, 50, 49, 31])
    product = cpp.linear_int8(weight, None, gated)
    assert torch.equal(product.unpacked(), want.unpacked())
    assert torch.equal(product.unpacked(ids), want.unpacked(ids))
    assert (want.unpacked() - weight).abs().max() < weight.abs().max() / 127


@pytest.mark.parametrize("dtype", FLOATS)
def test_bytes_of_x_may_come_from_anywhere_and_from_nowhere(cpp: CpuOps, dtype: torch.dtype) -> None:
    weight, bias, x = factors(33, 65, dtype)
    product = cpp.linear_int8(weight, bias)
    want = product(x)
    assert torch.equal(product(x.T.contiguous().T), want)
    wide = torch.full((len(x), 200), torch.nan, dtype=dtype)
    wide[:, 7:72] = x
    assert torch.equal(product(wide[:, 7:72]), want)
    assert product(x[:0]).shape == (0, 33)
    with pytest.raises(ValueError, match=r"expected \[..., 65\]"):
        product(x[:, :64])


def test_a_row_that_is_not_finite_gives_nan_alone(cpp: CpuOps) -> None:
    weight, _, x = factors(96, 64, torch.float32)
    for count in (3, 40):
        some = x[:count].clone()
        some[1, 5] = torch.inf
        y = cpp.linear_int8(weight, None)(some)
        assert y[1].isnan().all()
        assert torch.equal(y[[0, 2]], cpp.linear_int8(weight, None)(x[[0, 2]]))
