"""A linear layer with a packed weight in C++."""

from __future__ import annotations

from ctypes import addressof, c_void_p
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire_kernels.cpu.argmax import CpuArgmax
from quire_kernels.cpu.compiled.proxies import Proxy, Untraceable
from quire_kernels.cpu.library import COMPRESSED_BYTES, DTYPES, Library, PackedWeight
from quire_kernels.cpu.memory import empty
from quire_kernels.cpu.structs import Instruction, Op, StepStruct, TensorView, packed_copy

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps


class PackedLinear:
    """`ops.LinearOp` in C++: x [..., inputs] -> x weightᵀ + bias, [..., outputs].

    It holds a copy of the weight: `unpacked` returns it, so the original need not be kept.
    """

    batch_invariant = True

    def __init__(self, ops: CpuOps, weight: PackedWeight, dtype: torch.dtype, bias: Tensor | None) -> None:
        self._ops, self.library = ops, ops.library
        self.weight, self.packed = weight, weight.packed
        self.dtype, self.inputs = dtype, self.packed.inputs
        self.bias = None if bias is None else bias.detach().to(dtype).contiguous()
        self.argmax = CpuArgmax(self)
        """Argmax of each row's outputs, as `quire_kernels.ops.BoundLinear` describes."""
        self._idle: list[_LinearProgram] = []  # one for each thread that has multiplied concurrently

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs], in float32 if requested, else in x's data type. Raises ValueError for
        another x.
        """
        if isinstance(x, Proxy):
            if float32:
                raise Untraceable("all buffers of a program have one data type")
            return x.tracer.product(x, self)  # type: ignore[return-value]
        if x.shape[-1] != self.packed.inputs or x.dtype != self.dtype:
            expected = f"expected [..., {self.packed.inputs}] in {self.dtype}"
            raise ValueError(f"linear: {expected}, got {list(x.shape)} in {x.dtype}")
        rows = x.reshape(-1, self.packed.inputs)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = empty(len(rows), self.packed.outputs, torch.float32 if float32 else x.dtype)
        call = self._idle.pop() if self._idle else _LinearProgram(self)
        call.run(self._ops.library, rows, out)
        self._idle.append(call)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self.packed.outputs)

    @classmethod
    def bind(cls, ops: CpuOps, weight: Tensor, bias: Tensor | None, gated: bool) -> PackedLinear:
        """Pack a weight [outputs, inputs]."""
        return cls(ops, ops.library.pack(weight, gated and len(weight) % 2 == 0), weight.dtype, bias)

    @property
    def element_bytes(self) -> float:
        return float(self.dtype.itemsize) if self.weight.book is None else COMPRESSED_BYTES

    @property
    def instruction(self) -> Instruction:
        """The instruction that computes it, without x and the output."""
        bias = 0 if self.bias is None else self.bias.data_ptr()
        return Instruction(op=Op.PRODUCT, packed=packed_copy(self.packed), bias=bias)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The weight [outputs, inputs], or some rows of it (ids, int64)."""
        ids = torch.arange(self.packed.outputs) if rows is None else rows
        return self._ops.library.unpack(self.packed, ids, self.dtype)


class _LinearProgram:
    """A program of one product, reused between calls: building it expected as long as a small product."""

    def __init__(self, matrix: PackedLinear) -> None:
        self._program = (Instruction * 1)(matrix.instruction)
        self._program[0].out = TensorView(buffer=1, parts=1, width=matrix.packed.outputs)
        self._program[0].inputs[0] = TensorView(buffer=0, parts=1, width=matrix.packed.inputs)
        self._buffers = (c_void_p * 2)()
        self._step = StepStruct(is_bf16=DTYPES[matrix.dtype], buffers=addressof(self._buffers))

    def run(self, library: Library, x: Tensor, out: Tensor) -> None:
        """x [rows, inputs] -> out [rows, outputs], in float32 or x's data type."""
        product, step = self._program[0], self._step
        self._buffers[0], self._buffers[1] = x.data_ptr(), out.data_ptr()
        product.inputs[0].stride, product.out.stride = x.stride(0), out.stride(0)
        product.wide = int(out.dtype == torch.float32)
        step.tokens, step.threads = len(x), torch.get_num_threads()
        library.run(step, self._program)
