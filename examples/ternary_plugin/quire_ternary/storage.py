"""Finds and reads ternary matrices, and multiplies with them without widening them in memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.plugin import CheckpointError, StoredMatrix

POWERS = 3 ** torch.arange(5)
TRITS = (torch.arange(243)[:, None] // POWERS % 3 - 1).to(torch.int8)
"""The five weights of each byte [243, 5]."""


class TernaryFormat:
    """See `quire.plugin.CheckpointFormat`."""

    def matrices(self, shapes, read):
        """Each `X.trits` with its `X.step`. Rows may end within a byte; `X.inputs` int64 [1] says how long they are."""
        found = {}
        for name in shapes:
            if name.endswith(".trits"):
                module = name.removesuffix(".trits")
                parts = {part: f"{module}.{part}" for part in ("trits", "step", "inputs")}
                absent = [other for other in parts.values() if other not in shapes]
                if absent:
                    raise CheckpointError(f"{name}: the checkpoint has no {absent[0]} beside it.")
                inputs = read(parts["inputs"])
                if inputs.dtype != torch.int64 or inputs.shape != (1,) or len(shapes[name]) != 2:
                    raise CheckpointError(f"{parts['inputs']}: expected one int64 beside a matrix of bytes.")
                found[f"{module}.weight"] = StoredMatrix((shapes[name][0], int(inputs)), parts)
        return found

    def read(self, name, stored, tensors):
        """One matrix, after everything that the file says was checked."""
        (outputs, inputs), trits, step = stored.shape, tensors["trits"], tensors["step"]
        if trits.dtype != torch.uint8 or trits.shape != (outputs, -(-inputs // 5)) or int(trits.max()) >= 243:
            raise CheckpointError(f"{stored.tensors['trits']}: expected bytes below 243 for rows of {inputs} weights.")
        if step.dtype != torch.float32 or step.shape != (outputs,) or not bool(step.isfinite().all()):
            raise CheckpointError(f"{stored.tensors['step']}: expected {outputs} finite numbers in float32.")
        return TernaryMatrix(trits, step, inputs)


@dataclass(frozen=True)
class TernaryMatrix:
    """A matrix [outputs, inputs]; a format may return any object with these five members."""

    trits: Tensor
    step: Tensor
    inputs: int

    @property
    def shape(self):
        return torch.Size([len(self.trits), self.inputs])

    def rows(self, index):
        return TernaryMatrix(self.trits[index], self.step[index], self.inputs)

    def dequantized(self, dtype):
        signs = TRITS[self.trits.int()].view(len(self.trits), -1)[:, : self.inputs]
        return (signs * self.step[:, None]).to(dtype)

    def bind(self, ops, bias, dtype, gated, activation_bits):
        return TernaryLinear(self, bias, dtype)


class TernaryLinear:
    """The product: a `quire_kernels.ops.BoundLinear`. A real one would call a kernel that adds and subtracts."""

    element_bytes = 1 / 5

    def __init__(self, matrix, bias, dtype, rows_at_once=1024):
        self._matrix, self._bias, self._dtype, self._rows_at_once = matrix, bias, dtype, rows_at_once

    def __call__(self, x, float32=False):
        """x [..., inputs] -> [..., outputs]. Some outputs are computed at a time, so only few weights are unpacked."""
        wide = x.float()
        starts = range(0, self._matrix.shape[0], self._rows_at_once)
        slices = [slice(start, start + self._rows_at_once) for start in starts]
        y = torch.cat([wide @ self._matrix.rows(rows).dequantized(torch.float32).T for rows in slices], -1)
        y = y if self._bias is None else y + self._bias.float()
        return y if float32 else y.to(x.dtype)

    def unpacked(self, rows=None):
        return self._matrix.rows(slice(None) if rows is None else rows).dequantized(self._dtype)
