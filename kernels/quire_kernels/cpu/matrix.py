"""Matrix: a packed weight with its bias, ready to be multiplied by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire_kernels.cpu.layout import Op
from quire_kernels.cpu.tape import Symbol, Unrecordable, packed_copy

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps


class Matrix:
    """What `ops.Linear` gives: called with x [..., inputs] it gives x weightᵀ + bias, [..., outputs].

    It holds a copy of the weight: `unpacked` gives it back, and the original need not be kept.
    """

    def __init__(self, ops: CpuOps, weight: Tensor, bias: Tensor | None, gated: bool) -> None:
        self._ops = ops
        self.dtype = weight.dtype
        self.bias = None if bias is None else bias.detach().to(weight.dtype).contiguous()
        self._memory, self.packed = ops.library.pack(weight, gated and len(weight) % 2 == 0)

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs], in float32 if asked, else like x. Raises ValueError for another x."""
        if isinstance(x, Symbol):
            if float32:
                raise Unrecordable("all buffers of a program have one data type")
            return x.tape.product(x, self)  # type: ignore[return-value]
        if x.shape[-1] != self.packed.inputs or x.dtype != self.dtype:
            takes = f"a matrix takes [..., {self.packed.inputs}] in {self.dtype}"
            raise ValueError(f"linear: {takes}, got {list(x.shape)} in {x.dtype}")
        rows = x.reshape(-1, self.packed.inputs)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = torch.empty(len(rows), self.packed.outputs, dtype=torch.float32 if float32 else x.dtype)
        bias = 0 if self.bias is None else self.bias.data_ptr()
        self._ops.run(Op.PRODUCT, [rows], out, packed=packed_copy(self.packed), bias=bias, wide=int(float32))
        return out.view(*x.shape[:-1], self.packed.outputs)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The weight [outputs, inputs], or some rows of it (ids, int64)."""
        ids = torch.arange(self.packed.outputs) if rows is None else rows
        return self._ops.library.unpack(self.packed, ids, self.dtype)
