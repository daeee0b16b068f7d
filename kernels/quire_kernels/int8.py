"""Numbers as bytes with a scale, in plain torch: what quantised weights and quantised pages mean.

A vector r is stored as round(r / s), s = max |r| / 127, so that its largest element becomes 127 or -127.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 1e-30
"""A vector without any element as large as this counts as zeros."""

SCALE_BYTES = 4
"""Bytes of a scale, which is float32."""


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., N] -> int8 [..., N] and its scales, float32 [..., 1]: NaN where an element is not finite."""
    h = x.float()
    most = h.abs().amax(-1, keepdim=True)
    inverse, scale = torch.full_like(most, 127.0) / most, most / 127.0  # number / tensor would be rounded twice
    nothing = most < LEAST
    scaled = h * inverse.masked_fill(nothing, 0.0)
    whole = torch.round(scaled).nan_to_num(0.0).clamp(-127, 127).to(torch.int8)
    return whole, scale.masked_fill(nothing, 0.0).masked_fill(~most.isfinite(), torch.nan)


def dequantise(whole: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """int8 [..., N] and float32 [..., 1] -> [..., N]."""
    return (whole.float() * scale).to(dtype)


class ByteProduct:
    """What `linear_int8` gives."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._dtype, self._bias = weight.dtype, bias
        self._whole, self._scale = quantise(weight.detach())

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        whole, scale = quantise(x)
        sums = whole.double() @ self._whole.double().T  # every sum of products of bytes is exact in float64
        y = sums.float() * scale * self._scale[:, 0]
        if self._bias is not None:
            y = y + self._bias.float()
        return y if float32 else y.to(x.dtype)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The weight [outputs, inputs] as the bytes have it, or some rows of it (ids, int64)."""
        chosen = slice(None) if rows is None else rows
        return dequantise(self._whole[chosen], self._scale[chosen], self._dtype)


def linear_int8(weight: Tensor, bias: Tensor | None, gated: bool = False) -> ByteProduct:
    """See `ops.LinearInt8`."""
    return ByteProduct(weight, bias)
