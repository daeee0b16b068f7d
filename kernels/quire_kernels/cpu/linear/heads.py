"""A packed matrix for each head, in C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire_kernels.cpu.compiled.proxies import Proxy
from quire_kernels.cpu.library import DTYPES, panel_units, row_addresses
from quire_kernels.cpu.structs import Op, PackedMatrix

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps


class HeadsLinear:
    """`quire_kernels.attention.LinearHeads` bound to a weight [heads, outputs, inputs], of which it holds a copy."""

    def __init__(self, ops: CpuOps, weight: Tensor) -> None:
        self._ops = ops
        self.heads, self.outputs, self.inputs = weight.shape
        library, dtype = ops.library, weight.dtype
        size = library.functions.quire_panels(self.outputs, 0) * panel_units(self.inputs, dtype)  # units of a head
        self._units = library.panels.take(self.heads * size)
        for head, matrix in enumerate(weight.detach()):
            rows, to = row_addresses([matrix.contiguous()]), self._units[head * size :].data_ptr()
            shape = self.outputs, self.inputs, 0
            library.functions.quire_pack(DTYPES[dtype], rows.data_ptr(), *shape, to, torch.get_num_threads())
        self.packed = PackedMatrix(self._units.data_ptr(), self.outputs, self.inputs, 0, None)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, heads, inputs] -> [T, heads, outputs]."""
        if isinstance(x, Proxy):
            return x.tracer.product_heads(x, self)  # type: ignore[return-value]
        x = x if x.stride(-1) == 1 and x.stride(1) == self.inputs else x.contiguous()
        out = torch.empty(len(x), self.heads, self.outputs, dtype=x.dtype)
        self._ops.run(Op.PRODUCT_HEADS, [x], out, packed=self.packed)
        return out
