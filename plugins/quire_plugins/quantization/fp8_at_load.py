"""Quantization `fp8` at loading: matrices as FP8 (E4M3, arXiv 2209.05433) with a scale for each output channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.plugin import CheckpointError, ConfigError, QuantizationOptions

if TYPE_CHECKING:
    import torch

    from quire_kernels.ops import BoundLinear, LinearOp
    from quire_kernels.quantized import QuantizedMatrix
    from quire_kernels.select import Ops

LARGEST = 448.0
"""The largest number of E4M3 without infinities."""


def linear(ops: Ops, options: QuantizationOptions) -> LinearOp:
    """A linear op that quantizes the weight when it binds it; products are computed with the input as it is.

    Raises ConfigError for a group size, which this format does not have.
    """
    if options.group_size is not None:
        raise ConfigError("--quantization fp8 has one scale for each output channel; leave the group size out.")

    def bind(weight: torch.Tensor, bias: torch.Tensor | None, gated: bool = False) -> BoundLinear:
        try:
            matrix = quantize(weight)
        except ValueError as error:
            raise CheckpointError(f"{options.module or 'A matrix'} cannot be quantized: {error}.") from error
        return ops.linear_quantized(matrix, bias, weight.dtype, gated, 16)

    return bind


def quantize(weight: torch.Tensor) -> QuantizedMatrix:
    """A matrix [outputs, inputs] in E4M3: codes are the bytes, s(row) = max |row| / 448, rounded to nearest.

    Raises ValueError if a weight is not finite.
    """
    import torch

    from quire_kernels.int8 import MIN_ABS
    from quire_kernels.quantized import QuantizedMatrix

    largest = weight.detach().abs().amax(1, keepdim=True).float()
    if not bool(largest.isfinite().all()):
        raise ValueError("a weight is not finite")
    scales = torch.where(largest < MIN_ABS, 0.0, largest / LARGEST)
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales)
    codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    for row, (values, factor) in enumerate(zip(weight.detach().split(64), inverse.split(64), strict=True)):
        scaled = (values.float() * factor).clamp_(-LARGEST, LARGEST)
        codes[64 * row : 64 * row + len(values)] = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
    return QuantizedMatrix(codes, scales, 8, weight.shape[1], table=table)
