"""A linear layer with a weight of few bits, packed for C++."""

from __future__ import annotations

from ctypes import addressof, byref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire_kernels.cpu.argmax import CpuArgmax
from quire_kernels.cpu.compiled.proxies import Proxy, Untraceable
from quire_kernels.cpu.library import DTYPES
from quire_kernels.cpu.linear.quantized_packing import PackedCodes, pack
from quire_kernels.cpu.memory import empty
from quire_kernels.cpu.structs import Instruction, Op, packed_copy
from quire_kernels.quantized import QuantizedMatrix
from quire_kernels.quantized_rows import QuantizedRows

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps


class QuantizedLinear:
    """`ops.LinearQuantized` in C++: x [..., inputs] -> x weightᵀ + bias, [..., outputs].

    The packed matrix is the only copy that is needed; `unpacked` returns it dequantized.
    """

    batch_invariant = True

    def __init__(self, ops: CpuOps, weight: PackedCodes, dtype: torch.dtype, bias: Tensor | None) -> None:
        self._ops, self.library = ops, ops.library
        self.weight, self.packed = weight, weight.packed
        self.dtype, self.inputs = dtype, self.packed.inputs
        self.bias = None if bias is None else bias.detach().to(dtype).contiguous()
        self.scratch = weight.row_bytes // dtype.itemsize
        """Columns of x's data type that the prepared x takes."""
        self.argmax = CpuArgmax(self, self.scratch)
        """Argmax of each row's outputs, as `quire_kernels.ops.BoundLinear` describes."""

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs], in float32 if requested, else in x's data type. Raises ValueError for
        another x.
        """
        op = Op.PRODUCT_QUANTIZED
        if isinstance(x, Proxy):
            if float32:
                raise Untraceable("all buffers of a program have one data type")
            return x.tracer.product(x, self, op, self.scratch, weight=addressof(self.weight.struct))  # type: ignore[return-value]
        if x.shape[-1] != self.inputs or x.dtype != self.dtype:
            expected = f"expected [..., {self.inputs}] in {self.dtype}"
            raise ValueError(f"linear_quantized: {expected}, got {list(x.shape)} in {x.dtype}")
        rows = x.reshape(-1, self.inputs)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = empty(len(rows), self.packed.outputs, torch.float32 if float32 else x.dtype)
        scratch = torch.empty(len(rows), self.scratch, dtype=x.dtype)
        self._ops.run(op, [rows, scratch], out, **self._fields, wide=int(float32))
        return out.view(*x.shape[:-1], self.packed.outputs)

    @classmethod
    def bind(
        cls,
        ops: CpuOps,
        matrix: QuantizedMatrix | QuantizedRows,
        bias: Tensor | None,
        dtype: torch.dtype,
        gated: bool,
        activation_bits: int,
    ) -> QuantizedLinear:
        """Pack a matrix. Raises ValueError for fields that do not make one, and for other activation_bits than 8 and
        16.
        """
        problem = matrix.problem_of_form() if isinstance(matrix, QuantizedMatrix) else None
        if activation_bits not in (8, 16):
            problem = f"activations have 8 or 16 bits, not {activation_bits}"
        if problem is not None:
            raise ValueError(f"linear_quantized: {problem}")
        return cls(ops, pack(ops.library, matrix, gated and matrix.shape[0] % 2 == 0, activation_bits), dtype, bias)

    @property
    def _fields(self) -> dict[str, Any]:
        bias = 0 if self.bias is None else self.bias.data_ptr()
        return {"packed": packed_copy(self.packed), "weight": addressof(self.weight.struct), "bias": bias}

    @property
    def element_bytes(self) -> float:
        return self.weight.units.numel() * 4 / (self.packed.outputs * self.inputs)

    @property
    def instruction(self) -> Instruction:
        """The instruction that computes it, without x, scratch memory and the output."""
        return Instruction(op=Op.PRODUCT_QUANTIZED, **self._fields)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The dequantized weight [outputs, inputs], or some rows of it (ids, int64)."""
        ids = torch.arange(self.packed.outputs) if rows is None else rows
        out = torch.empty(len(ids), self.inputs, dtype=self.dtype)
        self.library.functions.quire_unpack_quantized(
            *(DTYPES[self.dtype], byref(self.packed), byref(self.weight.struct), ids.data_ptr(), len(ids)),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out
