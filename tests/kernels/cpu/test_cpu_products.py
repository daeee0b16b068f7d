"""Products of the C++ ops: right, and a row the same to the last bit among any others."""

from __future__ import annotations

import pytest
import torch
from cpu_rig import COUNTS, FLOATS, close, factors

from quire_kernels.cpu.ops import CpuOps

pytestmark = pytest.mark.usefixtures("seeded")


MATRICES = [(96, 64), (100, 70), (33, 65), (1, 1), (31, 2), (70, 33), (48, 1536), (32, 32)]
"""(outputs, inputs): multiples of a panel's 32 and others; one that takes more than one block of x."""


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_a_product_is_right_and_a_row_is_the_same_among_any_number_of_others(
    cpp_floats: CpuOps, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    given = factors(*shape, dtype)
    product = cpp_floats.linear(given.weight, given.bias)
    alone = torch.cat([product(row[None]) for row in given.x])
    close(alone, given.exact.to(dtype))
    for count in COUNTS:
        assert torch.equal(product(given.x[:count]), alone[:count]), f"{count} rows together"
        assert torch.equal(product(given.x[-count:]), alone[-count:]), f"the last {count} rows together"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(300, 4000, 40), (530, 600, 200), (610, 1500, 333), (530, 5000, 700)]
)
def test_rows_of_many_are_the_same_as_alone(
    cpp_floats: CpuOps, dtype: torch.dtype, rows: int, inputs: int, outputs: int
) -> None:
    """Shapes in which x, the inputs, and the panels need several blocks."""
    weight, x = torch.randn(outputs, inputs).to(dtype), torch.randn(rows, inputs).to(dtype)
    product = cpp_floats.linear(weight, None)
    together = product(x)
    for row in (0, 31, 32, 33, 63, 64, 65, 127, 128, 255, 299, rows // 2, rows - 1):
        assert torch.equal(product(x[row : row + 1])[0], together[row]), row


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_products_in_float32_are_not_rounded_first(
    cpp_floats: CpuOps, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    given = factors(*shape, dtype)
    for bias in (given.bias, None):
        want = given.exact - (0 if bias is not None else given.bias.double())
        got = cpp_floats.linear(given.weight, bias)(given.x, float32=True)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(64, 32), (66, 70), (2, 5), (34, 33), (33, 64)], ids=str)
def test_a_matrix_packed_for_gating_gives_what_it_gives_otherwise(
    cpp_floats: CpuOps, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    given = factors(*shape, dtype)
    gated, plain = cpp_floats.linear(given.weight, given.bias, gated=True), cpp_floats.linear(given.weight, given.bias)
    for wide in (False, True):
        assert torch.equal(gated(given.x, wide), plain(given.x, wide))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [*MATRICES, (66, 70)], ids=str)
def test_packed_matrices_give_their_weights_back(
    cpp_floats: CpuOps, shape: tuple[int, int], gated: bool, dtype: torch.dtype
) -> None:
    weight = factors(*shape, dtype).weight
    product = cpp_floats.linear(weight, None, gated)
    assert torch.equal(product.unpacked(), weight)
    ids = torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    assert torch.equal(product.unpacked(ids), weight[ids])
    assert product.unpacked(ids[:0]).shape == (0, shape[1])


def test_binding_copies_the_weight(cpp_floats: CpuOps) -> None:
    weight, x = torch.randn(40, 50), torch.randn(3, 50)
    product = cpp_floats.linear(weight, None)
    before = product(x)
    weight.zero_()
    assert torch.equal(product(x), before)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("inputs", [64, 70])
def test_the_rows_of_x_may_lie_anywhere(cpp_floats: CpuOps, inputs: int, dtype: torch.dtype) -> None:
    given = factors(48, inputs, dtype)
    wide = torch.full((70, 3 * inputs), torch.nan, dtype=dtype)
    wide[:, inputs : 2 * inputs] = given.x
    product = cpp_floats.linear(given.weight, given.bias)
    want = product(given.x)
    assert torch.equal(product(wide[:, inputs : 2 * inputs]), want)
    assert torch.equal(product(given.x.T.contiguous().T), want)
    assert torch.equal(product(given.x.view(7, 10, inputs)), want.view(7, 10, 48))
    assert torch.equal(product(given.x[0]), want[0])
    assert torch.equal(product(given.x[:1].expand(20, -1)), want[:1].expand(20, -1))
    strided = cpp_floats.linear(given.weight.T.contiguous().T, torch.stack((given.bias, given.bias), 1)[:, 0])
    assert torch.equal(strided(given.x), want)


def test_an_operand_that_does_not_fit_is_refused(cpp_floats: CpuOps) -> None:
    product = cpp_floats.linear(torch.randn(40, 64), None)
    for wrong in (torch.randn(2, 32), torch.randn(2, 64).bfloat16(), torch.randn(2, 64).half()):
        with pytest.raises(ValueError, match=r"expected \[..., 64\] in torch.float32, got \[2, "):
            product(wrong)
