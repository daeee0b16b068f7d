"""A linear layer with an int8 weight, packed for C++."""

from __future__ import annotations

from ctypes import byref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire_kernels.cpu.argmax import CpuArgmax
from quire_kernels.cpu.compiled.proxies import Proxy, Untraceable
from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.memory import empty
from quire_kernels.cpu.structs import Instruction, Op, PackedMatrix, packed_copy

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

PANEL = 32
"""Outputs of a panel."""
STEP = 64
"""Inputs are padded to a multiple of this; each quantized row has as many extra bytes for its scale and its sum."""


@dataclass(frozen=True, eq=False)
class Int8Weight:
    """A matrix in int8 panels. units: their memory. scales: float32, of each output of a panel."""

    units: Tensor
    scales: Tensor
    packed: PackedMatrix


def padded_inputs(inputs: int) -> int:
    """Inputs as panels and quantized rows of x have them."""
    return -(-inputs // STEP) * STEP


class Int8Linear:
    """`ops.LinearInt8` in C++: x [..., inputs] -> x weightᵀ + bias, [..., outputs].

    The int8 weight is the only copy that is needed; `unpacked` returns it dequantized.
    """

    batch_invariant = True

    def __init__(self, ops: CpuOps, weight: Int8Weight, dtype: torch.dtype, bias: Tensor | None) -> None:
        self._ops, self.library = ops, ops.library
        self.weight, self.scales, self.packed = weight, weight.scales, weight.packed
        self.dtype, self.inputs = dtype, self.packed.inputs
        self.bias = None if bias is None else bias.detach().to(dtype).contiguous()
        self.scratch = (padded_inputs(self.inputs) + STEP) // self.dtype.itemsize
        """Columns of x's data type that the quantized x takes."""
        self.argmax = CpuArgmax(self, self.scratch)
        """Argmax of each row's outputs, as `quire_kernels.ops.BoundLinear` describes."""

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs], in float32 if requested, else in x's data type. Raises ValueError for
        another x.
        """
        if isinstance(x, Proxy):
            if float32:
                raise Untraceable("all buffers of a program have one data type")
            return x.tracer.product(x, self, Op.PRODUCT_INT8, self.scratch, weight=self.scales.data_ptr())  # type: ignore[return-value]
        if x.shape[-1] != self.packed.inputs or x.dtype != self.dtype:
            expected = f"expected [..., {self.packed.inputs}] in {self.dtype}"
            raise ValueError(f"linear_int8: {expected}, got {list(x.shape)} in {x.dtype}")
        rows = x.reshape(-1, self.packed.inputs)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = empty(len(rows), self.packed.outputs, torch.float32 if float32 else x.dtype)
        scratch = torch.empty(len(rows), self.scratch, dtype=x.dtype)
        bias = 0 if self.bias is None else self.bias.data_ptr()
        packed, scales = packed_copy(self.packed), self.scales.data_ptr()
        fields: dict[str, Any] = {"packed": packed, "weight": scales, "bias": bias, "wide": int(float32)}
        self._ops.run(Op.PRODUCT_INT8, [rows, scratch], out, **fields)
        return out.view(*x.shape[:-1], self.packed.outputs)

    @classmethod
    def bind(cls, ops: CpuOps, weight: Tensor, bias: Tensor | None, gated: bool) -> Int8Linear:
        """Quantize and pack a weight [outputs, inputs]."""
        return cls(ops, _pack(ops.library, weight, gated and len(weight) % 2 == 0), weight.dtype, bias)

    @property
    def element_bytes(self) -> float:
        return 1.0

    @property
    def instruction(self) -> Instruction:
        """The instruction that computes it, without x, scratch memory and the output."""
        bias = 0 if self.bias is None else self.bias.data_ptr()
        packed, scales = packed_copy(self.packed), self.scales.data_ptr()
        return Instruction(op=Op.PRODUCT_INT8, packed=packed, weight=scales, bias=bias)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The dequantized weight [outputs, inputs], or some rows of it (ids, int64)."""
        ids = torch.arange(self.packed.outputs) if rows is None else rows
        out = torch.empty(len(ids), self.packed.inputs, dtype=self.dtype)
        self._ops.library.functions.quire_unpack_int8(
            *(DTYPES[self.dtype], byref(self.packed), self.scales.data_ptr(), ids.data_ptr(), len(ids)),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out


def _pack(library: Library, weight: Tensor, halves: bool) -> Int8Weight:
    """Pack a matrix [outputs, inputs] in int8 panels."""
    outputs, inputs = weight.shape
    weight = weight.detach().contiguous()
    panels = library.functions.quire_panels(outputs, int(halves))
    units = library.panels.take(panels * PANEL * padded_inputs(inputs) // 4)
    scales = torch.empty(panels * PANEL)
    library.functions.quire_pack_int8(
        *(DTYPES[weight.dtype], weight.data_ptr(), outputs, inputs, int(halves)),
        *(units.data_ptr(), scales.data_ptr(), torch.get_num_threads()),
    )
    return Int8Weight(units, scales, PackedMatrix(units.data_ptr(), outputs, inputs, int(halves), None))
