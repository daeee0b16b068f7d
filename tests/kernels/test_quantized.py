"""Matrices of few bits: what their fields mean, which fields are refused, and how several become one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quire_kernels import reference
from quire_kernels.quantized import QuantizedMatrix, joined

IQ4 = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.float32)


def drawn(outputs: int, bits: int, group: int, inputs: int = 128, **fields: Any) -> QuantizedMatrix:
    generator = torch.Generator().manual_seed(outputs * bits + group)
    codes = torch.randint(0, 1 << bits, (outputs, inputs), generator=generator).to(torch.uint8)
    scales = torch.rand(outputs, inputs // group, generator=generator) + 0.1
    return QuantizedMatrix(codes, scales, bits, group, **fields)


def by_element(matrix: QuantizedMatrix) -> Tensor:
    """The weight by the formula of the docstring, one element at a time."""
    outputs, inputs = matrix.shape
    found = torch.zeros(outputs, inputs)
    for n in range(outputs):
        for k in range(inputs):
            group, code = k // matrix.group_size, int(matrix.codes[n, k])
            value = code - matrix.zero if matrix.table is None else float(matrix.table[code])
            offset = 0.0 if matrix.offsets is None else float(matrix.offsets[n, group])
            at = k if matrix.order is None else int(matrix.order[k])
            found[n, at] = float(matrix.scales[n, group]) * value + offset
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {"zero": 8},
        {"offsets": torch.linspace(-1, 1, 24).view(6, 4)},
        {"table": IQ4},
        {"zero": 7, "order": torch.arange(127, -1, -1)},
    ],
    ids=["zero", "offsets", "table", "order"],
)
def test_an_element_is_its_scale_times_its_value_plus_its_offset(fields: dict[str, Any]) -> None:
    matrix = drawn(6, 4, 32, **fields)
    torch.testing.assert_close(matrix.dequantized(), by_element(matrix))
    torch.testing.assert_close(matrix.rows(torch.tensor([4, 1])).dequantized(), by_element(matrix)[[4, 1]])
    x = torch.randn(3, 128)
    exact = reference.linear_quantized(matrix, torch.ones(6), torch.float32, activation_bits=16)(x)
    torch.testing.assert_close(exact, x @ by_element(matrix).T + 1, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": 7}, "7 bits are not supported"),
        ({"group_size": 24}, "a group size of 24 does not divide 128 inputs"),
        ({"scales": torch.ones(6, 3)}, r"scales have shape \[6, 3\], expected \[6, 4\]"),
        ({"scales": torch.full((6, 4), torch.nan)}, "scales are not all finite"),
        ({"offsets": torch.full((6, 4), torch.inf)}, "offsets are not all finite"),
        ({"codes": torch.full((6, 128), 16, dtype=torch.uint8)}, "a code has more than 4 bits"),
        ({"table": torch.ones(15)}, "its table has 15 values for 4 bits"),
        ({"order": torch.zeros(128, dtype=torch.int64)}, "order of inputs is not a permutation"),
    ],
)
def test_fields_that_make_no_matrix_are_named(change: dict[str, Any], said: str) -> None:
    problem = replace(drawn(6, 4, 32), **change).problem()
    assert problem is not None
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(problem)
    assert drawn(6, 4, 32).problem() is None


@pytest.mark.parametrize(
    "several",
    [
        [drawn(5, 4, 32, zero=8), drawn(3, 6, 16, zero=32)],
        [drawn(5, 4, 32, zero=8), drawn(3, 4, 32, offsets=torch.ones(3, 4))],
        [drawn(5, 4, 128, zero=8), drawn(3, 4, 16), drawn(2, 8, 64, zero=128)],
        [drawn(5, 4, 32, table=IQ4), drawn(3, 6, 16, zero=32)],
        [drawn(5, 4, 32, table=IQ4), drawn(3, 4, 64, table=IQ4)],
    ],
    ids=["bits", "offsets", "three", "table and codes", "tables"],
)
def test_matrices_of_several_formats_become_one_without_rounding(several: list[QuantizedMatrix]) -> None:
    one = joined(several)
    assert one is not None
    assert one.problem() is None
    torch.testing.assert_close(one.dequantized(), torch.cat([by_element(matrix) for matrix in several]))


def test_matrices_that_no_form_holds_exactly_are_not_joined() -> None:
    halves = torch.linspace(-1, 1, 16)
    assert joined([drawn(5, 4, 32, table=halves), drawn(3, 4, 32, zero=8)]) is None
    assert joined([drawn(5, 4, 48, inputs=96), drawn(3, 4, 32, inputs=96)]) is None
    assert joined([drawn(5, 4, 32), drawn(3, 4, 32, order=torch.arange(127, -1, -1))]) is None
