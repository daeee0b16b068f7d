"""The model's own numbers that reading an adapter needs."""

from __future__ import annotations

import torch
from torch import Tensor

from quire_adapters import dora
from quire_adapters.target_modules import BaseWeight, EmbeddingTarget, LinearTarget


class BaseValues:
    """Those of a model that one process has; `quire_adapters.divided.DividedValues` is for one with several ranks."""

    def equals(self, base: BaseWeight, tensor: Tensor, dtype: torch.dtype) -> bool:
        """Whether a tensor of the same shape, rounded to `dtype`, has the same values."""
        return base.equals(tensor, dtype)

    def bias(self, target: LinearTarget) -> Tensor | None:
        """float32 [outputs], or None."""
        return target.bias

    def row_norms(self, target: LinearTarget, a: Tensor, b: Tensor) -> Tensor:
        """‖W + b a‖ by rows of W [outputs, inputs]; a [rank, inputs], b [outputs, rank] -> float32, on the CPU."""
        return dora.row_norms(target.rows, a, b, target.device)

    def column_norms(self, target: EmbeddingTarget, a: Tensor, b: Tensor) -> Tensor:
        """‖E + a b‖ by columns of E [rows, width]; a [rows, rank], b [rank, width] -> float32, on the CPU."""
        return dora.column_norms(target.rows, a, b, target.device)
