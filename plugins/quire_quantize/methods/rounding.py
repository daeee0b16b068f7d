"""Methods that need no data: rounding to nearest, and the search for scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.errors import CheckpointError
from quire_kernels.quantized import QuantizedMatrix
from quire_plugins.quantization.scale_search import CodeGrid, group_size_for, quantize
from quire_quantize.plan import DTYPES, Matrix, QuantizationPlan


@dataclass(frozen=True)
class RoundingScheme:
    """How matrices are stored. group_size: None = a scale for each output. search: see `scale_search.CodeGrid`."""

    bits: int
    group_size: int | None
    asymmetric: bool = False
    search: bool = True

    def grid(self, weight: Tensor) -> CodeGrid:
        """The grid for a matrix; scales have its dtype."""
        inputs = weight.shape[1]
        size = inputs if self.group_size is None else group_size_for(inputs, self.group_size)
        return CodeGrid(self.bits, size, self.asymmetric, True, weight.dtype, self.search)


def read_matrix(plan: QuantizationPlan, matrix: Matrix) -> Tensor:
    """The weight of a matrix. Raises CheckpointError for integers and the like."""
    weight = plan.files.read(matrix.name)
    if weight.dtype not in DTYPES:
        raise CheckpointError(f"Tensor {matrix.name!r} has {weight.dtype}, which cannot be quantized.")
    return weight


def quantize_named(name: str, weight: Tensor, grid: CodeGrid, importance: Tensor | None = None) -> QuantizedMatrix:
    """Call `scale_search.quantize`; raises CheckpointError, naming the tensor, if a weight is not finite."""
    try:
        return quantize(weight, grid, importance)
    except ValueError as error:
        raise CheckpointError(f"Tensor {name!r} cannot be quantized: {error}.") from error


def rounded(
    plan: QuantizationPlan, matrices: Sequence[Matrix], scheme: RoundingScheme
) -> Iterator[tuple[str, QuantizedMatrix]]:
    """Each matrix by itself."""
    for matrix in matrices:
        weight = read_matrix(plan, matrix)
        yield matrix.name, quantize_named(matrix.name, weight, scheme.grid(weight))


def output_error(error: Tensor, gram: Tensor) -> float:
    """Squared error of the outputs, for an error of the weight [outputs, inputs] and xᵀx [inputs, inputs]."""
    return float(torch.sum((error @ gram) * error))
