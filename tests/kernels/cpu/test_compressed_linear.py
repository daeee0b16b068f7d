"""Packed matrices of twelve bits a number: the same products to the last bit, from three quarters of the memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cpu_isas import HERE
from torch import Tensor

from quire_kernels.cpu import library
from quire_kernels.cpu.library import load
from quire_kernels.cpu.linear.packed import PackedLinear
from quire_kernels.cpu.ops import CpuOps

pytestmark = pytest.mark.usefixtures("seeded")

BF16 = torch.bfloat16
SHAPES = [(96, 64), (100, 70), (33, 65), (1, 1), (31, 2), (66, 33), (48, 1536), (960, 576), (70, 4160)]
ROWS = (1, 2, 3, 4, 5, 6, 11, 12, 13, 16, 17, 24, 33, 40, 61, 70, 200)


@pytest.fixture(params=HERE)
def ops(request: pytest.FixtureRequest) -> CpuOps:
    return CpuOps(load(HERE[request.param]))


def gaussian(outputs: int, inputs: int) -> Tensor:
    return (torch.randn(outputs, inputs) * 0.02).to(BF16)


def with_odd_values(outputs: int, inputs: int) -> Tensor:
    """Some far smaller and larger than the others, and zeros of both signs, at either end too."""
    weights = gaussian(outputs, inputs).flatten()
    odd = torch.tensor([1e-20, -0.0, 1e9, -3e-9, 0.0, -7.0], dtype=BF16)
    places = torch.randperm(len(weights))[: len(weights) // 200]
    weights[places] = odd[torch.arange(len(places)) % len(odd)]
    weights[0], weights[-1] = 1e-20, 1e9
    return weights.view(outputs, inputs)


@pytest.fixture
def plain(ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PackedLinear]:
    """Binds a matrix as it is."""

    def bind(weight: Tensor, bias: Tensor | None = None, gated: bool = False) -> PackedLinear:
        with monkeypatch.context() as patch:
            patch.setattr(library, "MAX_RARE_SHARE", 1 << 40)
            matrix = ops.linear(weight, bias, gated)
        assert matrix.packed.book is None
        return matrix

    return bind


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("make", [gaussian, with_odd_values])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_the_same_to_the_last_bit(
    ops: CpuOps, plain: Callable[..., PackedLinear], shape: tuple[int, int], make: Callable[..., Tensor], gated: bool
) -> None:
    weight, bias = make(*shape), torch.randn(shape[0]).to(BF16)
    compact, as_it_is = ops.linear(weight, bias, gated), plain(weight, bias, gated)
    assert compact.packed.book is not None
    for rows in ROWS:
        x = torch.randn(rows, shape[1]).to(BF16)
        for wide in (False, True):
            assert torch.equal(compact(x, wide), as_it_is(x, wide)), rows
        assert compact.argmax(x) == as_it_is.argmax(x)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_value_comes_back(ops: CpuOps, shape: tuple[int, int], gated: bool) -> None:
    weight = with_odd_values(*shape)
    matrix = ops.linear(weight, None, gated)
    assert matrix.packed.book is not None
    assert torch.equal(matrix.unpacked().view(torch.int16), weight.view(torch.int16))
    ids = torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    assert torch.equal(matrix.unpacked(ids), weight[ids])


def test_a_quarter_of_the_memory_is_saved(ops: CpuOps) -> None:
    weight = gaussian(640, 1024)
    units = {dtype: ops.library.pack(weight.to(dtype), False).units for dtype in (BF16, torch.float32)}
    assert units[torch.float32].nbytes == 4 * 640 * 1024
    assert 1.5 < units[BF16].nbytes / (640 * 1024) < 1.52
    assert ops.linear(weight, None).element_bytes == 1.5


def test_what_is_not_alike_stays_as_it_is(ops: CpuOps) -> None:
    weight = torch.randint(0, 0x7F00, (64, 256), dtype=torch.int16).view(BF16)
    matrix = ops.linear(weight, None)
    assert (matrix.packed.book, matrix.element_bytes) == (None, 2)
    assert torch.equal(matrix.unpacked(), weight)


def test_one_panel_that_is_not_like_the_others_decides(ops: CpuOps) -> None:
    weight = gaussian(320, 256)
    weight[40] = torch.randint(0, 0x7F00, (256,), dtype=torch.int16).view(BF16)
    matrix = ops.linear(weight, None)
    assert matrix.packed.book is None
    assert torch.equal(matrix.unpacked(), weight)


def test_a_panel_with_more_rare_values_than_a_sample_promises(ops: CpuOps) -> None:
    weight = gaussian(640, 1024)
    weight[40, :200] = 1e-30
    matrix = ops.linear(weight, None)
    assert matrix.packed.book is not None
    assert torch.equal(matrix.unpacked(), weight)
    following = ops.linear(weight[:32], None)  # beside it in memory that was given back
    assert torch.equal(matrix.unpacked(), weight)
    assert torch.equal(following.unpacked(), weight[:32])


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("gated", [False, True])
def test_parts_are_packed_as_one_matrix(ops: CpuOps, dtype: torch.dtype, gated: bool) -> None:
    parts = [with_odd_values(outputs, 96).to(dtype) for outputs in (70, 1, 33)]
    weight, bias = torch.cat(parts), torch.randn(104).to(dtype)
    matrix, one = ops.linear(parts, bias, gated), ops.linear(weight, bias, gated)
    assert torch.equal(matrix.unpacked(), weight)
    x = torch.randn(5, 96).to(dtype)
    assert torch.equal(matrix(x), one(x))


def test_float32_stays_as_it_is(ops: CpuOps) -> None:
    assert ops.linear(torch.randn(64, 64), None).packed.book is None
