"""MXFP4 (OCP Microscaling Formats 1.0) as GPT-OSS stores its experts.

Of experts [E, N, K]: `X_blocks` uint8 [E, N, K / 32, 16], two values of E2M1 a byte, the low half first, and `X_scales`
uint8 [E, N, K / 32], exponents of E8M0. Their rows are outputs; gate and up rows of `gate_up_proj` alternate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from quire.plugin import CheckpointError, StoredMatrix
from quire_kernels.quantized import QuantizedMatrix
from quire_plugins.quantization.formats.scaled import exponent_scales
from quire_plugins.quantization.formats.stored_tensors import MatrixTensors, Names, ReadTensor, Shape, sizes
from quire_plugins.quantization.formats.unpacking import unpack_low_first

GROUP = 32
TWICE_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12)
"""Twice the values of E2M1 without a sign, so that all are integers; the scales are halved for it."""
NAMES = Names(("blocks", "_blocks"), {"scales": ("_scales",)}, {})


@dataclass(frozen=True)
class Mxfp4:
    """The format has no settings."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The format of a `quantization_config`."""
        return cls()

    def matrices(self, shapes: Mapping[str, Shape], read: ReadTensor) -> dict[str, StoredMatrix]:
        """Each tensor of blocks with its scales: experts [E, N, K], or a matrix [N, K] if there are no experts."""
        found = {}
        for name, parts in NAMES.grouped(shapes).items():
            blocks = parts["blocks"]
            shape = sizes(blocks, shapes, 3 if len(shapes[blocks]) == 3 else 4)
            if shape[-1] * 2 != GROUP:
                raise CheckpointError(f"{blocks} has blocks of {shape[-1]} bytes, expected {GROUP // 2}.")
            found[name] = StoredMatrix((*shape[:-2], shape[-2] * GROUP), parts)
        return found

    def read(
        self, name: str, stored: StoredMatrix, tensors: Mapping[str, Tensor]
    ) -> QuantizedMatrix | list[QuantizedMatrix]:
        """One matrix for each expert."""
        parts, (*outer, inputs) = MatrixTensors(stored, tensors), stored.shape
        groups = (*outer, inputs // GROUP)
        blocks = parts.get("blocks", (torch.uint8,), (*groups, GROUP // 2))
        exponents = parts.get("scales", (torch.uint8,), groups)
        if len(outer) == 1:
            return _matrix(parts, blocks, exponents)
        return [_matrix(parts, *expert) for expert in zip(blocks, exponents, strict=True)]


def _matrix(parts: MatrixTensors, blocks: Tensor, exponents: Tensor) -> QuantizedMatrix:
    codes = unpack_low_first(blocks.reshape(len(blocks), -1))
    scales = exponent_scales(parts, "scales", exponents, 0.5)
    table = torch.tensor([*TWICE_E2M1, *(-value for value in TWICE_E2M1)], dtype=torch.float32)
    return QuantizedMatrix(codes, scales, 4, GROUP, table=table)
