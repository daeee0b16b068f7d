"""Random matrices of few bits, and their products in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from quire_kernels.quantized import QuantizedBoundLinear, QuantizedMatrix

FLOAT8 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
"""The value of each code of float8 (e4m3); 127 and 255 are NaN."""
IQ4_NL = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]).float()
NF4 = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(16) + 0.5) / 16)
"""Sixteen quantiles of a normal distribution, like the table of NF4."""

EVERY_BITS = (2, 3, 4, 5, 6, 8)
SHAPES = [(33, 64, 16), (70, 96, 32), (64, 128, 64), (36, 256, 128), (30, 70, 70), (2, 96, 48), (3, 2, 2), (40, 64, 64)]
"""(outputs, inputs, inputs of a group): panels of 32 outputs and others, steps of 32 inputs and others."""


def random_matrix(
    shape: tuple[int, int, int],
    bits: int,
    zero: int | None = None,
    offsets: bool = False,
    table: Tensor | None = None,
    ordered: bool = False,
) -> QuantizedMatrix:
    """zero: None = the middle of the codes. Scales and offsets are float16 numbers; no code is NaN in float8."""
    outputs, inputs, group = shape
    made = torch.Generator().manual_seed(outputs * inputs + bits)
    codes = torch.randint(0, 1 << bits, (outputs, inputs), generator=made, dtype=torch.uint8)
    if table is FLOAT8:
        codes[codes % 128 == 127] = 0
    groups = -(-inputs // group)
    scales, added = (torch.randn(outputs, groups, generator=made).div(50).half().float() for _ in range(2))
    return QuantizedMatrix(
        codes,
        scales,
        bits,
        group,
        zero=0 if table is not None else 1 << bits - 1 if zero is None else zero,
        offsets=added if offsets else None,
        table=table,
        order=torch.randperm(inputs, generator=made) if ordered else None,
    )


def random_x(rows: int, inputs: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(1)).to(dtype)


def near(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    """Equal up to the order of float32 sums, relative to the largest value."""
    assert got.shape == want.shape
    assert got.isfinite().all()
    assert (got.float() - want.float()).abs().max() <= tolerance * want.float().abs().max()


def exact(matrix: QuantizedMatrix, x: Tensor, activation_bits: int = 8, bias: Tensor | None = None) -> Tensor:
    """The product with `QuantizedBoundLinear` in plain torch, in float32."""
    return QuantizedBoundLinear(matrix, bias, x.dtype, activation_bits)(x, float32=True)
