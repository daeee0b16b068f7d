"""Int8 with a scale, in plain torch: the definition of quantized weights and quantized pages.

A vector r is stored as round(r / s) with s = max |r| / 127, so its largest element becomes 127 or -127.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIN_ABS = 1e-30
"""A vector whose elements are all smaller than this is stored as zeros."""

SCALE_BYTES = 4
"""Size of a scale (float32)."""


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., N] -> int8 [..., N] and scales float32 [..., 1]. The scale is NaN where an element is not finite."""
    h = x.float()
    largest = h.abs().amax(-1, keepdim=True)
    inverse, scale = (
        torch.full_like(largest, 127.0) / largest,
        largest / 127.0,
    )  # a Python number divided by a tensor would be rounded twice
    is_zero = largest < MIN_ABS
    scaled = h * inverse.masked_fill(is_zero, 0.0)
    quantized = torch.round(scaled).nan_to_num(0.0).clamp(-127, 127).to(torch.int8)
    return quantized, scale.masked_fill(is_zero, 0.0).masked_fill(~largest.isfinite(), torch.nan)


def dequantize(quantized: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """int8 [..., N] and scales float32 [..., 1] -> [..., N] in `dtype`."""
    return (quantized.float() * scale).to(dtype)


class Int8BoundLinear:
    """`linear_int8` in plain torch: the weight as int8 with a scale per output."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._dtype, self._bias = weight.dtype, bias
        self._quantized, self._scale = quantize(weight.detach())

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        quantized, scale = quantize(x)
        sums = quantized.double() @ self._quantized.double().T  # sums of int8 products are exact in float64
        y = sums.float() * scale * self._scale[:, 0]
        if self._bias is not None:
            y = y + self._bias.float()
        return y if float32 else y.to(x.dtype)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The dequantized weight [outputs, inputs], or some rows of it (ids, int64)."""
        chosen = slice(None) if rows is None else rows
        return dequantize(self._quantized[chosen], self._scale[chosen], self._dtype)


def linear_int8(weight: Tensor, bias: Tensor | None, gated: bool = False) -> Int8BoundLinear:
    return Int8BoundLinear(weight, bias)
