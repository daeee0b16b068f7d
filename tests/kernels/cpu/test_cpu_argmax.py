"""The place of a product's largest output, found by the product itself: the same as the op `argmax` finds after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from quire_kernels import reference
from quire_kernels.cpu import argmax
from quire_kernels.cpu.ops import CpuOps

pytestmark = pytest.mark.usefixtures("threads")


def bindings(cpp: CpuOps) -> list[Callable[..., Any]]:
    return [cpp.linear, cpp.linear_int8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 7), (96, 8192), (160, 20001)])
def test_it_finds_what_the_op_finds_in_the_product(cpp: CpuOps, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weight, bias = torch.randn(outputs, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype)
    for bind in bindings(cpp):
        product = bind(weight, bias)
        for rows in (1, 3, 33, 2):  # more rows than before, then fewer
            x = torch.randn(rows, 2 * inputs, dtype=dtype)[:, inputs:]
            assert product.argmax(x) == reference.argmax(product(x, float32=True)).tolist()


def test_of_equals_the_first_counts_and_what_is_not_finite_has_none(cpp: CpuOps) -> None:
    weight = torch.zeros(9000, 32)
    weight[[5, 8500], 0] = 1.0
    product = cpp.linear(weight, None)
    x = torch.zeros(4, 32)
    x[0, 0], x[1, 0], x[2, 0], x[3, 0] = 2.0, -2.0, float("nan"), float("inf")
    assert product.argmax(x) == reference.argmax(product(x, float32=True)).tolist() == [5, 0, -1, -1]


def test_many_rows_are_searched_in_parts_of_limited_memory(cpp: CpuOps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argmax, "MAX_OUTPUTS", 4 * 100 * 4)
    for bind in bindings(cpp):
        product = bind(torch.randn(100, 32), None)
        for rows in (4, 5, 11, 3):
            x = torch.randn(rows, 32)
            assert product.argmax(x) == reference.argmax(product(x, float32=True)).tolist()
            assert all(search._rows <= 4 for search in product.argmax._idle)


def test_another_x_is_refused(cpp: CpuOps) -> None:
    product = cpp.linear(torch.randn(100, 32), None)
    for x in (torch.randn(2, 31), torch.randn(32), torch.randn(2, 32, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="argmax: expected"):
            product.argmax(x)
