"""Products of float32 in tiles of bfloat16: as exact as float32 is, and a row is the same among any others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_isas import HERE
from torch import Tensor

from quire_kernels.cpu.library import load
from quire_kernels.cpu.linear.packed import PackedLinear
from quire_kernels.cpu.linear.split_bf16 import SplitBf16Linear
from quire_kernels.cpu.ops import CpuOps

pytestmark = pytest.mark.usefixtures("threads")

needs_amx = pytest.mark.skipif("amx" not in HERE, reason="this machine has no AMX, or no compiler")
MATRICES = [(96, 64), (100, 70), (33, 65), (1, 1), (31, 2), (48, 1536), (32, 32), (384, 384)]
"""(outputs, inputs): multiples of a panel's 32 and others, panels worked on in pairs and alone."""
COUNTS = (1, 2, 15, 16, 17, 31, 32, 33, 64, 70, 200)


def amx() -> CpuOps:
    return CpuOps(load(HERE["amx"]))


def factors(outputs: int, inputs: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """A weight, a bias and x with as many rows as are ever asked for."""
    made = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=made) * scale / inputs**0.5
    return weight, torch.randn(outputs, generator=made) * scale, torch.randn(max(COUNTS), inputs, generator=made)


@needs_amx
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
@pytest.mark.parametrize("shape", MATRICES, ids=str)
def test_a_product_is_as_exact_as_float32_and_a_row_is_the_same_among_any_number_of_others(
    shape: tuple[int, int], scale: float
) -> None:
    weight, bias, x = factors(*shape, scale)
    matrix = amx().linear_batched(weight, bias)
    assert isinstance(matrix, SplitBf16Linear)
    exact = F.linear(x.double(), weight.double(), bias.double())
    whole = matrix(x)
    theirs = (F.linear(x, weight, bias) - exact).abs().max()
    assert (whole - exact).abs().max() <= 1.5 * theirs + 2e-7 * exact.abs().max()
    for count in COUNTS:
        assert torch.equal(matrix(x[:count]), whole[:count])
        assert torch.equal(matrix(x[-count:]), whole[-count:])


@needs_amx
def test_the_rows_of_x_may_lie_anywhere_and_be_none() -> None:
    weight, _, x = factors(40, 64)
    matrix = amx().linear_batched(weight, None)
    wide = torch.full((len(x), 200), torch.nan)
    wide[:, 100:164] = x
    assert torch.equal(matrix(wide[:, 100:164]), matrix(x))
    assert torch.equal(matrix(x.view(2, -1, 64)), matrix(x).view(2, -1, 40))
    assert matrix(x[:0]).shape == (0, 40)


@needs_amx
def test_the_number_of_threads_changes_nothing(threads: Any) -> None:
    weight, bias, x = factors(384, 1536)
    matrix = amx().linear_batched(weight, bias)
    threads(1)
    want = matrix(x)
    for count in (2, 3):
        threads(count)
        assert torch.equal(matrix(x), want)


@needs_amx
@pytest.mark.parametrize("gated", [False, True])
def test_the_weight_comes_back_to_the_last_bit(gated: bool) -> None:
    weight, _, x = factors(70, 100)
    weight[0, :4] = torch.tensor([0.0, -0.0, 1 + 2.0**-23, -1e30])
    matrix = amx().linear_batched(weight, None, gated)
    assert torch.equal(matrix.unpacked(), weight)
    ids = torch.tensor([69, 0, 35])
    assert torch.equal(matrix.unpacked(ids), weight[ids])
    assert torch.equal(matrix(x[:20]), amx().linear_batched(weight, None)(x[:20]))


@needs_amx
def test_a_row_that_is_no_number_spoils_no_other() -> None:
    weight, _, x = factors(40, 64)
    matrix = amx().linear_batched(weight, None)
    want = matrix(x)
    x[3, 5], x[20, 1] = torch.nan, torch.inf
    got = matrix(x)
    kept = [i for i in range(len(x)) if i not in (3, 20)]
    assert torch.equal(got[kept], want[kept])
    assert got[[3, 20]].isnan().all()


@needs_amx
def test_what_a_matrix_does_not_take_is_refused() -> None:
    matrix = amx().linear_batched(torch.zeros(4, 8), None)
    for wrong in (torch.zeros(2, 7), torch.zeros(2, 8).bfloat16()):
        with pytest.raises(ValueError, match=r"linear_batched: expected \[..., 8\] in torch.float32"):
            matrix(wrong)


@pytest.mark.parametrize("name", HERE)
def test_elsewhere_and_in_bfloat16_it_is_the_usual_product(name: str) -> None:
    ops = CpuOps(load(HERE[name]))
    assert isinstance(ops.linear_batched(torch.zeros(4, 8).bfloat16(), None), PackedLinear)
    if name != "amx":
        assert isinstance(ops.linear_batched(torch.zeros(4, 8), None), PackedLinear)
