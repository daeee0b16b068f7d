"""GPTQ (arXiv 2210.17323): each column's rounding error is made up for by the columns that are still to be rounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from quire_kernels.quantized import QuantizedMatrix
from quire_plugins.quantization.scale_search import CodeGrid
from quire_quantize.calibration import BlockRunner
from quire_quantize.methods.rounding import RoundingScheme, quantize_named, read_matrix, rounded
from quire_quantize.plan import QuantizationPlan

DAMPING = 0.01
"""Share of the mean of the diagonal that is added to it (section 3.3 of the paper, step 3)."""

COLUMNS = 128
"""Columns whose errors are applied to the rest together."""


def gptq(plan: QuantizationPlan, scheme: RoundingScheme, runner: BlockRunner) -> Iterator[tuple[str, QuantizedMatrix]]:
    """Block by block, with inputs that the quantized blocks before it give; the other matrices by themselves."""
    for index in range(runner.num_blocks):
        grams = runner.grams(index)
        for matrix in plan.in_block(index):
            weight = read_matrix(plan, matrix)
            found = compensated(matrix.name, weight, grams[matrix.path], scheme.grid(weight))
            runner.put(matrix, found.dequantized())
            yield matrix.name, found
        runner.advance(index)
    yield from rounded(plan, plan.outside_blocks(), scheme)


def compensated(name: str, weight: Tensor, gram: Tensor, grid: CodeGrid) -> QuantizedMatrix:
    """A matrix [outputs, inputs] on a grid. gram: xᵀx of its inputs, float32 [inputs, inputs]."""
    rest = weight.float().clone()
    outputs, inputs = rest.shape
    inverse = _inverse_factor(gram)
    size = grid.group_size
    parts: list[QuantizedMatrix] = []
    codes = torch.empty(outputs, inputs, dtype=torch.uint8)
    for first in range(0, inputs, COLUMNS):
        last = min(first + COLUMNS, inputs)
        errors = torch.zeros(outputs, last - first)
        for column in range(first, last):
            if column % size == 0:
                # groups of more columns than are updated at once get scales without the last updates
                parts.append(quantize_named(name, rest[:, column : column + size], grid))
            values, codes[:, column] = _nearest(rest[:, column], parts[-1], grid)
            error = (rest[:, column] - values) / inverse[column, column]
            rest[:, column:last] -= error[:, None] * inverse[column, column:last]
            errors[:, column - first] = error
        rest[:, last:] -= errors @ inverse[first:last, last:]
    scales = torch.cat([part.scales for part in parts], 1)
    offsets = torch.cat([part.offsets for part in parts if part.offsets is not None], 1) if grid.asymmetric else None
    return replace(parts[0], codes=codes, scales=scales, offsets=offsets)


def _nearest(values: Tensor, group: QuantizedMatrix, grid: CodeGrid) -> tuple[Tensor, Tensor]:
    """Values [outputs] on the grid of their group, and their codes."""
    scales = group.scales[:, 0]
    offsets = -group.zero * scales if group.offsets is None else group.offsets[:, 0]
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales)
    codes = ((values - offsets) * inverse).round_().clamp_(0, (1 << grid.bits) - 1)
    return codes * scales + offsets, codes.to(torch.uint8)


def _inverse_factor(gram: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped Hessian; inputs that are always 0 count as independent."""
    hessian = gram.double()
    diagonal = hessian.diagonal()
    dead = diagonal <= 0
    diagonal[dead] = 1.0
    mean = float(diagonal.mean())
    for damping in (DAMPING, 10 * DAMPING, 100 * DAMPING):
        damped = hessian + damping * mean * torch.eye(len(hessian), dtype=torch.float64)
        factor, info = torch.linalg.cholesky_ex(damped)
        if not int(info):
            break
    inverse = torch.cholesky_inverse(factor)
    return torch.linalg.cholesky(inverse, upper=True).float()
