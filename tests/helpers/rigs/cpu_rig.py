"""The C++ ops as tests know them: instruction sets, data types, how near is near, and products to try."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
COUNTS = (1, 2, 3, 5, 11, 12, 13, 16, 17, 31, 32, 33, 48, 64, 70)
"""Rows of x."""


def close(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[want.dtype], rtol=TOLERANCE[want.dtype])


@dataclass(frozen=True)
class Factors:
    weight: Tensor
    bias: Tensor
    x: Tensor
    exact: Tensor
    """The product before it is rounded to the data type."""


@cache
def factors(outputs: int, inputs: int, dtype: torch.dtype) -> Factors:
    made = torch.Generator().manual_seed(0)
    weight = (torch.randn(outputs, inputs, generator=made) / inputs**0.5).to(dtype)
    bias = torch.randn(outputs, generator=made).to(dtype)
    x = torch.randn(max(COUNTS), inputs, generator=made).to(dtype)
    return Factors(weight, bias, x, F.linear(x.double(), weight.double(), bias.double()))
