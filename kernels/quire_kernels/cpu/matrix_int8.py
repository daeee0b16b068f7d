"""ByteMatrix: a weight packed as bytes with a scale for each output, ready to be multiplied by."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire_kernels.cpu.argmax import Argmax
from quire_kernels.cpu.layout import Instruction, Op, PackedMatrix
from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.symbolic_forward import Unrecordable
from quire_kernels.cpu.tape import Symbol, packed_copy

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

PANEL = 32
STEP = 64
"""Inputs are padded to a multiple of this; a row of them has as many bytes again for its scale and their sum."""


class ByteMatrix:
    """What `ops.LinearInt8` gives: called with x [..., inputs] it gives x weightᵀ + bias, [..., outputs].

    Its bytes are the only copy of the weight that is needed; `unpacked` gives it back as they have it.
    """

    def __init__(self, ops: CpuOps, weight: Tensor, bias: Tensor | None, gated: bool) -> None:
        self._ops, self.library = ops, ops.library
        self.dtype, self.inputs = weight.dtype, weight.shape[1]
        self.bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()
        self._memory, self.scales, self.packed = _pack(ops.library, weight, gated and len(weight) % 2 == 0)
        row = -(-self.packed.inputs // STEP) * STEP + STEP
        self.room = row // self.dtype.itemsize
        """Columns of x's dtype that x takes as bytes."""
        self.argmax = Argmax(self, self.room)
        """The place of each row's largest output; see `quire_kernels.ops.Product`."""

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs], in float32 if asked, else like x. Raises ValueError for another x."""
        if isinstance(x, Symbol):
            if float32:
                raise Unrecordable("all buffers of a program have one data type")
            return x.tape.product(x, self, Op.PRODUCT_INT8, self.room, weight=self.scales.data_ptr())  # type: ignore[return-value]
        if x.shape[-1] != self.packed.inputs or x.dtype != self.dtype:
            takes = f"a matrix takes [..., {self.packed.inputs}] in {self.dtype}"
            raise ValueError(f"linear_int8: {takes}, got {list(x.shape)} in {x.dtype}")
        rows = x.reshape(-1, self.packed.inputs)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = torch.empty(len(rows), self.packed.outputs, dtype=torch.float32 if float32 else x.dtype)
        room = torch.empty(len(rows), self.room, dtype=x.dtype)
        bias = 0 if self.bias is None else self.bias.data_ptr()
        packed, scales = packed_copy(self.packed), self.scales.data_ptr()
        fields: dict[str, Any] = {"packed": packed, "weight": scales, "bias": bias, "wide": int(float32)}
        self._ops.run(Op.PRODUCT_INT8, [rows, room], out, **fields)
        return out.view(*x.shape[:-1], self.packed.outputs)

    @property
    def element_bytes(self) -> float:
        """See `quire_kernels.ops.Product`."""
        return 1.0

    @property
    def instruction(self) -> Instruction:
        """What computes it; x, memory for its bytes, and where to, are still to be told."""
        bias = 0 if self.bias is None else self.bias.data_ptr()
        packed, scales = packed_copy(self.packed), self.scales.data_ptr()
        return Instruction(op=Op.PRODUCT_INT8, packed=packed, weight=scales, bias=bias)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The weight [outputs, inputs] as the bytes have it, or some rows of it (ids, int64)."""
        ids = torch.arange(self.packed.outputs) if rows is None else rows
        out = torch.empty(len(ids), self.packed.inputs, dtype=self.dtype)
        self._ops.library.functions.quire_unpack_int8(
            *(DTYPES[self.dtype], byref(self.packed), self.scales.data_ptr(), ids.data_ptr(), len(ids)),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out


def _pack(library: Library, weight: Tensor, halves: bool) -> tuple[Tensor, Tensor, PackedMatrix]:
    """A matrix [outputs, inputs] in panels of bytes: their memory, a scale for each output, the description."""
    outputs, inputs = weight.shape
    weight = weight.detach().contiguous()
    panels = library.functions.quire_panels(outputs, int(halves))
    units = library.panels.take(panels * PANEL * (-(-inputs // STEP) * STEP) // 4)
    scales = torch.empty(panels * PANEL)
    library.functions.quire_pack_int8(
        *(DTYPES[weight.dtype], weight.data_ptr(), outputs, inputs, int(halves)),
        *(units.data_ptr(), scales.data_ptr(), torch.get_num_threads()),
    )
    return units, scales, PackedMatrix(units.data_ptr(), outputs, inputs, int(halves), None)
