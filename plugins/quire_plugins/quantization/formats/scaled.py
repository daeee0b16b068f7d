"""Codes of a byte with scales for the tensor, its channels, groups or blocks: what FP8 and int8 checkpoints store."""

from __future__ import annotations

import torch
from torch import Tensor

from quire_kernels.quantized import QuantizedMatrix, float8_table
from quire_plugins.quantization.formats.stored_tensors import FLOATS, MatrixTensors, columns

EXPONENTS = 127
"""The exponent bias of E8M0 (OCP Microscaling Formats 1.0, section 5.4.1)."""
CHUNK = 4096
"""Rows of codes that are checked at a time."""


def exponent_scales(parts: MatrixTensors, part: str, exponents: Tensor, factor: float = 1.0) -> Tensor:
    """float32 scales factor · 2^(e - 127) of exponents uint8. Raises CheckpointError for 255, which is NaN."""
    if bool((exponents == 255).any()):
        raise parts.error(part, "has values that are NaN")
    powers = factor * torch.exp2(torch.arange(256, dtype=torch.float64) - EXPONENTS)
    return powers.float()[exponents.int()]


def read_scales(parts: MatrixTensors, part: str) -> Tensor:
    """Scales of any shape in float32: floats, or exponents (E8M0) as float8_e8m0fnu or uint8."""
    exponents = (torch.uint8, torch.float8_e8m0fnu)
    scales = parts.get(part, (*FLOATS, *exponents))
    if scales.dtype in exponents:
        return exponent_scales(parts, part, scales.view(torch.uint8))
    return parts.finite(part, scales.float())


def by_group(
    parts: MatrixTensors, part: str, values: Tensor, shape: tuple[int, ...], block: tuple[int, int] | None
) -> tuple[int, Tensor]:
    """(group size, values [outputs, groups]) of values for the tensor [] or [1], for its outputs [N] or [N, 1], or, if
    `block` has its height and width, for its blocks.
    """
    outputs, inputs = shape
    if block is None:
        if values.numel() == 1 and values.dim() <= 2:
            return inputs, values.reshape(1, 1).repeat(outputs, 1)
        if tuple(values.shape) not in ((outputs,), (outputs, 1)):
            raise parts.error(part, f"has shape {list(values.shape)}, expected one value or [{outputs}, 1]")
        return inputs, values.reshape(outputs, 1).contiguous()
    height, width = block
    grid = (-(-outputs // height), -(-inputs // width))
    if tuple(values.shape) != grid:
        raise parts.error(
            part, f"has shape {list(values.shape)}, expected {list(grid)} for blocks of {height} x {width}"
        )
    size, runs = parts.groups(part, inputs, width)
    values = columns(values, runs)
    return size, values if height == 1 else values.repeat_interleave(height, 0)[:outputs].contiguous()


def read_float8(
    parts: MatrixTensors, scales: str, shape: tuple[int, ...], block: tuple[int, int] | None
) -> QuantizedMatrix:
    """The matrix of the parts "weight" (float8_e4m3fn) and `scales`; its codes are the stored bytes."""
    codes = parts.get("weight", (torch.float8_e4m3fn,), shape).view(torch.uint8)
    for rows in codes.split(CHUNK):
        if bool((rows.bitwise_and(127) == 127).any()):
            raise parts.error("weight", "has values that are NaN")
    size, values = by_group(parts, scales, read_scales(parts, scales), shape, block)
    return QuantizedMatrix(codes, values, 8, size, table=float8_table())


def signed_codes(weight: Tensor) -> Tensor:
    """int8 -> codes uint8, of which 128 stands for zero."""
    return weight.view(torch.uint8) ^ 128
