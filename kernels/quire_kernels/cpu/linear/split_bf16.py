"""A linear layer with a float32 weight split into three bfloat16 parts: exact products in AMX tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire_kernels.cpu.compiled.proxies import Proxy
from quire_kernels.cpu.memory import empty
from quire_kernels.cpu.structs import Op, packed_copy

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

PARTS = 3
STEP = 32
"""Inputs whose parts are stored together."""


class SplitBf16Linear:
    """`ops.LinearBatched` for float32 on a machine with AMX; `csrc/gemm/gemm_bf16x3.hpp` explains the method.

    It takes 1.5 times the weight's memory, and `unpacked` returns the weight.
    """

    batch_invariant = True

    def __init__(self, ops: CpuOps, weight: Tensor, bias: Tensor | None, gated: bool) -> None:
        self._ops = ops
        self.inputs = weight.shape[1]
        self.bias = None if bias is None else bias.detach().contiguous()
        self._weight = ops.library.pack(_split(weight.detach()), gated and len(weight) % 2 == 0, compresses=False)
        self.packed = self._weight.packed

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x float32 [..., inputs] -> [..., outputs]. Raises ValueError for another x."""
        if isinstance(x, Proxy):
            return x.tracer.product(x, self, Op.PRODUCT_SPLIT)  # type: ignore[return-value]
        if x.shape[-1] != self.inputs or x.dtype != torch.float32:
            expected = f"expected [..., {self.inputs}] in torch.float32"
            raise ValueError(f"linear_batched: {expected}, got {list(x.shape)} in {x.dtype}")
        rows = x.reshape(-1, self.inputs)
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        out = empty(len(rows), self.packed.outputs, torch.float32)
        bias = 0 if self.bias is None else self.bias.data_ptr()
        fields: dict[str, Any] = {"packed": packed_copy(self.packed), "bias": bias}
        self._ops.run(Op.PRODUCT_SPLIT, [rows], out, **fields)
        return out.view(*x.shape[:-1], self.packed.outputs)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The weight [outputs, inputs], or some rows of it (ids, int64)."""
        ids = torch.arange(self.packed.outputs) if rows is None else rows
        parts = self._ops.library.unpack(self.packed, ids, torch.bfloat16).view(len(ids), -1, PARTS, STEP).float()
        return (parts[:, :, 2] + parts[:, :, 1] + parts[:, :, 0]).flatten(1)[:, : self.inputs].contiguous()


def _split(weight: Tensor) -> Tensor:
    """Split a weight float32 [outputs, inputs] into bfloat16 [outputs, steps * PARTS * STEP]."""
    outputs, inputs = weight.shape
    rest = torch.zeros(outputs, -(-inputs // STEP) * STEP)
    rest[:, :inputs] = weight
    parts = []
    for _ in range(PARTS):
        parts.append(rest.bfloat16())
        rest = rest - parts[-1].float()
    return torch.stack([part.view(outputs, -1, STEP) for part in parts], 2).flatten(1)
