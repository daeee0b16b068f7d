"""The op `moe` in C++: the matrices of all experts as one struct, and the instruction that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire_kernels.cpu.compiled.proxies import Proxy, Untraceable
from quire_kernels.cpu.linear.int8 import Int8Linear
from quire_kernels.cpu.linear.packed import PackedLinear
from quire_kernels.cpu.linear.quantized import QuantizedLinear
from quire_kernels.cpu.moe.route import COLUMNS, joined
from quire_kernels.cpu.moe.structs import ExpertMatricesStruct, ExpertMatrixStruct, MixtureStruct
from quire_kernels.cpu.structs import ACTIVE, CLAMPED, GATED, Op, packed_copy
from quire_kernels.moe import ClampedSwiglu, ExpertMlp
from quire_kernels.ops import ACTS, BoundLinear
from quire_kernels.pytorch.moe import SortedExperts
from quire_kernels.reference_moe import Activations

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

KINDS: tuple[type, ...] = (PackedLinear, Int8Linear, QuantizedLinear)
"""In the order of the C++ enum `MatrixKind`."""


def bind(
    ops: CpuOps,
    up: Tensor | Sequence[BoundLinear],
    down: Tensor | Sequence[BoundLinear],
    mlp: ExpertMlp,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> GroupedExperts | SortedExperts:
    """Experts that run in one instruction, or one after another if their matrices have not all the same form."""
    activations = Activations(ops.gated_act, ops.act)
    stacked = isinstance(up, Tensor) and isinstance(down, Tensor)
    ups = _packed(ops, up, up_bias, mlp.gated)
    downs = _packed(ops, down, down_bias, False)
    if _are_alike(ups, int(mlp.gated)) and _are_alike(downs, 0):
        return GroupedExperts(ops, ups, downs, mlp, activations, stacked)
    return SortedExperts(ups, downs, mlp, None, None, activations)


def _packed(
    ops: CpuOps, matrices: Tensor | Sequence[BoundLinear], biases: Tensor | None, gated: bool
) -> Sequence[BoundLinear]:
    if not isinstance(matrices, Tensor):
        return matrices
    return [ops.linear(m, None if biases is None else biases[i], gated) for i, m in enumerate(matrices)]


def _are_alike(matrices: Sequence[Any], halves: int) -> bool:
    kind = type(matrices[0])
    return kind in KINDS and all(type(matrix) is kind and matrix.packed.halves == halves for matrix in matrices)


class GroupedExperts(SortedExperts):
    """`ops.BoundMoe` in C++. keeps_copy: whether it has packed stacked matrices, which then need not be kept."""

    def __init__(
        self,
        ops: CpuOps,
        ups: Sequence[Any],
        downs: Sequence[Any],
        mlp: ExpertMlp,
        activations: Activations,
        keeps_copy: bool,
    ) -> None:
        super().__init__(ups, downs, mlp, None, None, activations)
        self.keeps_copy, self._ops = keeps_copy, ops
        self.width, self.hidden = ups[0].inputs, downs[0].inputs
        self._arrays = [(ExpertMatrixStruct * self.count)(*map(_struct_of, each)) for each in (ups, downs)]
        up, down = (
            ExpertMatricesStruct(addressof(array), KINDS.index(type(each[0])), _row_bytes(each))
            for array, each in zip(self._arrays, (ups, downs), strict=True)
        )
        act = mlp.act
        if isinstance(act, ClampedSwiglu):
            finish, number, alpha, limit = CLAMPED, ACTS.index("sigmoid"), act.alpha, act.limit
        else:
            finish, number, alpha, limit = GATED if mlp.gated else ACTIVE, ACTS.index(act), 0.0, 0.0
        self._rest = up, down, finish, number, alpha, limit, int(mlp.weighs_inputs), mlp.first or 0
        self._structs: dict[int, MixtureStruct] = {}

    @property
    def matrices(self) -> tuple[BoundLinear, ...]:
        """The first matrices of the experts, then the second ones."""
        up, down = self._matrices
        return *up, *down

    def _struct(self, top_k: int) -> MixtureStruct:
        """The mixture for this number of experts per token."""
        if top_k not in self._structs:
            self._structs[top_k] = MixtureStruct(self.count, top_k, self.width, self.hidden, *self._rest)
        return self._structs[top_k]

    def __call__(self, x: Any, weights: Any, chosen: Any) -> Any:
        """x [T, W]; weights float32 and chosen int64 [T, J] -> [T, W], data type of x."""
        if isinstance(x, Proxy):
            return self._record(x, weights, chosen)
        top_k = chosen.shape[1]
        x = x if x.stride(-1) == 1 else x.contiguous()
        scratch = torch.empty(len(x), top_k * self.hidden, dtype=x.dtype)
        out = torch.empty(x.shape, dtype=x.dtype)
        inputs = [x, joined(weights, chosen, x.dtype), scratch]
        self._ops.run(Op.MOE, inputs, out, weight=addressof(self._struct(top_k)))
        return out

    def _record(self, x: Proxy, weights: Any, chosen: Any) -> Proxy:
        if weights is not chosen or not isinstance(chosen, Proxy) or x.headed or x.columns != self.width:
            raise Untraceable("experts need the proxy that `route` has returned")
        top_k = chosen.columns // COLUMNS
        x.tracer.kept.append(self)
        inputs = [x, chosen, x.tracer.new(top_k * self.hidden)]
        return x.tracer.write(Op.MOE, inputs, x.tracer.new(self.width), weight=addressof(self._struct(top_k)))


def _struct_of(matrix: Any) -> ExpertMatrixStruct:
    instruction = matrix.instruction
    return ExpertMatrixStruct(packed_copy(matrix.packed), instruction.weight, instruction.bias)


def _row_bytes(matrices: Sequence[Any]) -> int:
    """Memory that a quantized row of x takes."""
    return max(getattr(matrix, "scratch", 0) * matrix.dtype.itemsize for matrix in matrices)
