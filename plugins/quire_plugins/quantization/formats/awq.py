"""AWQ (Lin et al., 2023, arXiv:2306.00978) as AutoAWQ stores it, 4 bits with a zero for each group.

Layout gemm, of a matrix [N, K]: `qweight` int32 [K, N / 8] and `qzeros` int32 [G, N / 8], packed along the outputs in
the order of `unpacking.AWQ_COLUMNS`; `scales` [G, N]. Layout gemv: `qweight` int32 [N, K / 8] and `qzeros` int32 [N,
W], packed along the inputs and groups in their own order; `scales` [N, 8 · W]; W has room for more than G zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from quire.plugin import StoredMatrix
from quire_kernels.quantized import QuantizedMatrix
from quire_plugins.quantization.formats import config_fields as fields
from quire_plugins.quantization.formats.stored_tensors import (
    MatrixTensors,
    Names,
    ReadTensor,
    Shape,
    columns,
    sizes,
    zero_offsets,
)
from quire_plugins.quantization.formats.unpacking import unpack, unpack_awq

NAMES = Names(("qweight", ".qweight"), {"qzeros": (".qzeros",), "scales": (".scales",)}, {})
INT32 = (torch.int32,)


@dataclass(frozen=True)
class Awq:
    """group_size: -1 = all inputs. has_gemv_layout: the layout gemv instead of gemm."""

    group_size: int
    has_gemv_layout: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The format of a `quantization_config`."""
        bits = fields.integer(config, ("bits", "w_bit"))
        if bits != 4:
            raise fields.wrong("bits", bits, "4")
        if not fields.flag(config, "zero_point", True):
            raise fields.wrong("zero_point", False, "true")
        version = fields.choice(config, ("version", "checkpoint_format", "format"), ("gemm", "gemv"), "gemm")
        return cls(fields.group_size(config, ("group_size", "q_group_size")), version == "gemv")

    def matrices(self, shapes: Mapping[str, Shape], read: ReadTensor) -> dict[str, StoredMatrix]:
        """Each module with a `qweight`."""
        found = {}
        for module, parts in NAMES.grouped(shapes).items():
            rows, words = sizes(parts["qweight"], shapes, 2)
            shape = (rows, words * 8) if self.has_gemv_layout else (words * 8, rows)
            found[f"{module}.weight"] = StoredMatrix(shape, parts)
        return found

    def read(self, name: str, stored: StoredMatrix, tensors: Mapping[str, Tensor]) -> QuantizedMatrix:
        """Unpack the tensors of one matrix."""
        parts, inputs = MatrixTensors(stored, tensors), stored.shape[1]
        run = inputs if self.group_size == -1 else min(self.group_size, inputs)
        size, runs = parts.groups("scales", inputs, run)
        read = self._gemv if self.has_gemv_layout else self._gemm
        codes, scales, zeros = read(parts, stored.shape, -(-inputs // run))
        scales, zeros = columns(scales, runs), columns(zeros, runs)
        zero, offsets = zero_offsets(zeros, scales, 8)
        return QuantizedMatrix(codes, scales, 4, size, zero, offsets)

    def _gemm(self, parts: MatrixTensors, shape: Shape, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        outputs, inputs = shape
        codes = unpack_awq(parts.get("qweight", INT32, (inputs, outputs // 8)))
        zeros = unpack_awq(parts.get("qzeros", INT32, (groups, outputs // 8)))
        return codes, parts.scales("scales", (groups, outputs)).T, zeros

    def _gemv(self, parts: MatrixTensors, shape: Shape, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        outputs, inputs = shape
        codes = unpack(parts.get("qweight", INT32, (outputs, inputs // 8)), 4, inputs)
        words, scales = parts.get("qzeros", INT32), parts.scales("scales")
        if words.dim() != 2 or len(words) != outputs or words.shape[1] * 8 < groups:
            raise parts.error("qzeros", f"has shape {list(words.shape)}, expected {outputs} rows of {groups} zeros")
        if scales.dim() != 2 or len(scales) != outputs or scales.shape[1] < groups:
            raise parts.error("scales", f"has shape {list(scales.shape)}, expected {outputs} rows of {groups} scales")
        return codes, scales[:, :groups], unpack(words, 4, groups)
