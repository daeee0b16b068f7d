"""Collects the quantized pieces of a matrix as a checkpoint's tensors arrive, and binds them when all are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from quire_kernels.ops import BoundLinear
from quire_kernels.quantized import QuantizedMatrix, joined
from quire_kernels.quantized_rows import QuantizedRows, joined_rows
from quire_kernels.select import Ops


class QuantizedPieces:
    """The pieces of one matrix [outputs, …], by their first output; a matrix that is not fused has one piece."""

    def __init__(self, outputs: int) -> None:
        self._outputs = outputs
        self._pieces: dict[int, Any] = {}

    def put(self, first: int, matrix: Any) -> None:
        """Add the piece whose first output is `first`."""
        self._pieces[first] = matrix

    @property
    def complete(self) -> bool:
        """Whether the pieces cover all outputs."""
        return sum(piece.shape[0] for piece in self._pieces.values()) == self._outputs

    @property
    def pieces(self) -> Mapping[int, Any]:
        """Pieces by their first output."""
        return self._pieces

    def bind(self, ops: Ops, bias: Tensor | None, dtype: torch.dtype, gated: bool, activation_bits: int) -> BoundLinear:
        """Bind all pieces as one matrix if one form holds them exactly, else one by one."""
        ordered = [self._pieces[first] for first in sorted(self._pieces)]
        one = ordered[0] if len(ordered) == 1 else None
        if one is None and all(isinstance(piece, QuantizedMatrix) for piece in ordered):
            one = joined(ordered)
        if one is None and all(isinstance(piece, QuantizedRows) for piece in ordered):
            one = joined_rows(ordered)
        if one is not None:
            bound: BoundLinear = one.bind(ops, bias, dtype, gated, activation_bits)
            return bound
        biases = [None] * len(ordered) if bias is None else bias.split([piece.shape[0] for piece in ordered])
        return JoinedLinear(
            [
                piece.bind(ops, added, dtype, False, activation_bits)
                for piece, added in zip(ordered, biases, strict=True)
            ],
            [piece.shape[0] for piece in ordered],
        )


class JoinedLinear:
    """Several bound matrices with the same input whose outputs stand one after another."""

    def __init__(self, parts: Sequence[BoundLinear], sizes: Sequence[int]) -> None:
        self.parts, self._sizes = parts, sizes
        self.batch_invariant = all(getattr(part, "batch_invariant", False) for part in parts)

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        return torch.cat([part(x, float32) for part in self.parts], -1)

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The weight [outputs, inputs], or some rows of it (ids, int64)."""
        parts: Any = self.parts
        if rows is None:
            return torch.cat([part.unpacked() for part in parts])
        start, found = 0, torch.empty(0)
        for part, size in zip(parts, self._sizes, strict=True):
            inside = ((rows >= start) & (rows < start + size)).nonzero()[:, 0]
            some = part.unpacked(rows[inside] - start)
            if start == 0:
                found = some.new_empty(len(rows), some.shape[1])
            found[inside] = some
            start += size
        return found
