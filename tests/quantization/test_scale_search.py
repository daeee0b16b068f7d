"""The search for scales of integer codes: less error than rounding to nearest, and every kind of matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire_plugins.quantization.fp8_at_load import quantize as quantize_fp8
from quire_plugins.quantization.scale_search import (
    CodeGrid,
    compiled_search,
    group_size_for,
    quantize,
    quantize_in_torch,
)

KINDS = {
    "symmetric": {},
    "with positive scales": {"conventional": True},
    "with offsets": {"asymmetric": True},
    "with integer zeros": {"asymmetric": True, "conventional": True},
}


def drawn(distribution: str, outputs: int = 96, inputs: int = 256, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(outputs, inputs, generator=generator)
    if distribution == "normal":
        return normal
    chi2 = torch.randn(3, outputs, inputs, generator=generator).square().mean(0)
    return normal / chi2.sqrt()  # Student's t with three degrees of freedom


def error(weight: Tensor, grid: CodeGrid, importance: Tensor | None = None) -> float:
    off = quantize(weight, grid, importance).dequantized() - weight
    return float((off.square() * (1.0 if importance is None else importance)).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distribution", ["normal", "heavy-tailed"])
@pytest.mark.parametrize(("bits", "least"), [(3, 0.05), (4, 0.03), (6, 0.005)])
def test_the_search_has_less_error_than_rounding_to_nearest(
    kind: str, distribution: str, bits: int, least: float
) -> None:
    weight = drawn(distribution)
    found, nearest = (error(weight, CodeGrid(bits, 32, search=search, **KINDS[kind])) for search in (True, False))
    assert found < (1 - least) * nearest


@pytest.mark.parametrize("kind", KINDS)
def test_weighted_inputs_have_less_weighted_error(kind: str) -> None:
    weight, grid = drawn("heavy-tailed"), CodeGrid(4, 64, **KINDS[kind])
    importance = torch.rand(256, generator=torch.Generator().manual_seed(1)) ** 8 + 1e-3
    plain = quantize(weight, grid).dequantized() - weight
    assert error(weight, grid, importance) < 0.97 * float((plain.square() * importance).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_equal_factors_change_nothing(kind: str) -> None:
    weight, grid = drawn("normal"), CodeGrid(4, 32, **KINDS[kind])
    plain, weighted = quantize(weight, grid), quantize(weight, grid, torch.ones(256))
    assert torch.equal(plain.codes, weighted.codes)
    torch.testing.assert_close(plain.scales, weighted.scales)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("inputs", "wanted", "size"), [(256, 32, 32), (80, 32, 16), (65, 32, 65), (48, 128, 48), (40, 32, 40), (96, 64, 48)]
)
def test_groups_are_the_largest_that_divide_the_inputs(kind: str, inputs: int, wanted: int, size: int) -> None:
    assert group_size_for(inputs, wanted) == size
    weight = drawn("normal", 5, inputs)
    matrix = quantize(weight, CodeGrid(4, size, **KINDS[kind]))
    assert matrix.problem() is None
    assert matrix.shape == weight.shape
    assert (matrix.dequantized() - weight).abs().max() < 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_scales_have_the_precision_that_they_are_stored_in(kind: str, stored: torch.dtype) -> None:
    matrix = quantize(drawn("normal"), CodeGrid(4, 32, stored=stored, **KINDS[kind]))
    assert torch.equal(matrix.scales, matrix.scales.to(stored).float())
    if kind == "with offsets":
        assert torch.equal(matrix.offsets, matrix.offsets.to(stored).float())


def test_conventional_scales_are_positive() -> None:
    assert (quantize(drawn("normal"), CodeGrid(4, 32, conventional=True)).scales > 0).all()
    assert (quantize(drawn("normal"), CodeGrid(4, 32)).scales < 0).any()


def test_integer_zeros_are_codes() -> None:
    matrix = quantize(drawn("normal") + 0.5, CodeGrid(4, 32, asymmetric=True, conventional=True))
    zeros = -matrix.offsets / matrix.scales
    torch.testing.assert_close(zeros, zeros.round(), atol=1e-5, rtol=0)
    assert zeros.min() >= 0
    assert zeros.max() <= 15


@pytest.mark.parametrize("kind", ["symmetric", "with positive scales", "with offsets"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_searches_find_what_the_search_in_torch_finds(kind: str, dtype: torch.dtype) -> None:
    cases = ((4, 256, 32, torch.float32), (6, 80, 16, torch.bfloat16), (3, 65, 65, torch.half))
    for bits, inputs, size, stored in cases:
        weight = drawn("normal", 101, inputs).to(dtype)  # its groups are not a multiple of 16
        grid = CodeGrid(bits, size, stored=stored, **KINDS[kind])
        if compiled_search(weight, grid) is None:
            pytest.skip("there are no compiled operations")
        found, wanted = quantize(weight, grid), quantize_in_torch(weight, grid)
        assert (found.codes != wanted.codes).float().mean() < 0.01  # fits of equal error
        errors = [float((one.dequantized() - weight.float()).square().sum()) for one in (found, wanted)]
        assert errors[0] == pytest.approx(errors[1], rel=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_does_not_depend_on_threads_nor_on_the_rows_beside(kind: str) -> None:
    weight, grid = drawn("heavy-tailed", 1200, 256), CodeGrid(4, 32, **KINDS[kind])
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(quantize(weight, grid))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    found.append(quantize(weight[:700], grid))
    for other in found[1:]:
        rows = len(other.codes)
        assert torch.equal(found[0].codes[:rows], other.codes)
        assert torch.equal(found[0].scales[:rows], other.scales)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-35, 3e38, -3e38, 1e-20])
def test_constant_rows_stay(kind: str, value: float) -> None:
    found = quantize(torch.full((3, 32), value), CodeGrid(4, 32, **KINDS[kind])).dequantized()
    torch.testing.assert_close(found, torch.full((3, 32), value), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_large_numbers_do_not_overflow(kind: str) -> None:
    weight = drawn("normal", 4, 64)
    huge, plain = (
        quantize(weight * factor, CodeGrid(4, 32, **KINDS[kind])).dequantized() / factor for factor in (2.0**124, 1.0)
    )
    torch.testing.assert_close(huge, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused(kind: str, value: float) -> None:
    weight = drawn("normal", 8, 64)
    weight[3, 40] = value
    with pytest.raises(ValueError, match="not finite"):
        quantize(weight, CodeGrid(4, 32, **KINDS[kind]))
    with pytest.raises(ValueError, match="not finite"):
        quantize_fp8(weight)


def test_float8_rounds_to_the_nearest_of_its_numbers() -> None:
    weight = torch.cat([drawn("heavy-tailed", 130, 64), torch.zeros(1, 64)])
    matrix = quantize_fp8(weight)
    assert matrix.problem() is None
    largest = weight.abs().amax(1, keepdim=True)
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = numbers[numbers.isfinite()]
    scaled = weight / (largest / 448).clamp_min(1e-30)
    nearest = (scaled[..., None] - numbers).abs().amin(-1)
    off = (matrix.dequantized() - weight).abs() / (largest / 448).clamp_min(1e-30)
    torch.testing.assert_close(off, nearest, rtol=1e-3, atol=1e-3)
