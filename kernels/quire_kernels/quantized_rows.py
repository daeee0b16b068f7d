"""Matrices of few bits that are read some rows at a time: their codes as a whole are never in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from quire_kernels.quantized import QuantizedMatrix, joined

ROWS_AT_ONCE = 1024
"""Rows that are dequantized at a time."""


@dataclass(frozen=True, eq=False)
class BlockRows:
    """The rows of a matrix as they lie in a mapped file, in blocks.

    kind: name of the blocks' type, in `quire_kernels.cpu.ggml_blocks.TYPES`. count: blocks of a row. addresses: of each row, int64. release: gives memory of rows that
    were read back to the system. mapped: objects that keep the file mapped.
    """

    kind: str
    count: int
    addresses: Tensor
    release: Callable[[], None]
    mapped: object


@dataclass(frozen=True, eq=False)
class QuantizedRows:
    """A matrix [outputs, inputs] that `read` makes rows of.

    read(ids): the matrix of the rows `ids`, int64, of which there may be none. All have the same form: bits, groups,
    zero, table, order, and whether there are offsets. It may be called in several threads at once.
    blocks: the same rows in a file, if they are there; an op that reads them calls `read` where numbers are not finite,
    which raises the error.
    """

    shape: torch.Size
    read: Callable[[Tensor], QuantizedMatrix]
    blocks: BlockRows | None = None

    def form(self) -> QuantizedMatrix:
        """The matrix of no rows."""
        return self.read(torch.empty(0, dtype=torch.int64))

    def whole(self) -> QuantizedMatrix:
        """The matrix of all rows."""
        return self.read(torch.arange(self.shape[0]))

    def rows(self, index: Tensor | slice) -> QuantizedRows:
        """The matrix of some outputs: ids int64, or a slice."""
        ids = torch.arange(self.shape[0])[index]
        blocks = self.blocks and replace(self.blocks, addresses=self.blocks.addresses[ids])
        return QuantizedRows(torch.Size((len(ids), self.shape[1])), lambda some: self.read(ids[some]), blocks)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix [outputs, inputs] in `dtype`, computed in float32."""
        values = torch.empty(self.shape, dtype=dtype)
        for ids in torch.arange(self.shape[0]).split(ROWS_AT_ONCE):
            values[int(ids[0]) : int(ids[-1]) + 1] = self.read(ids).dequantized(dtype)
        return values

    def bind(
        self, ops: Any, bias: Tensor | None, dtype: torch.dtype, gated: bool = False, activation_bits: int = 8
    ) -> Any:
        """The matrix ready to be multiplied, as `QuantizedMatrix.bind`."""
        matrix = self if getattr(ops.linear_quantized, "packs_rows", False) else self.whole()
        return ops.linear_quantized(matrix, bias, dtype, gated, activation_bits)


def as_slice(ids: Tensor) -> slice | Tensor:
    """Ids as a slice if they follow one another, since indexing with it makes no copy."""
    first, count = int(ids[0]) if len(ids) else 0, len(ids)
    return slice(first, first + count) if torch.equal(ids, torch.arange(first, first + count)) else ids


def joined_rows(matrices: Sequence[QuantizedRows]) -> QuantizedRows | None:
    """One matrix with the outputs of all, as `quire_kernels.quantized.joined`; None if no form represents all."""
    if joined([matrix.form() for matrix in matrices]) is None:
        return None
    starts = [0, *accumulate(matrix.shape[0] for matrix in matrices)]

    def read(ids: Tensor) -> QuantizedMatrix:
        inside = [((ids >= first) & (ids < end)).nonzero()[:, 0] for first, end in pairwise(starts)]
        pieces = zip(matrices, inside, starts[:-1], strict=True)
        one = joined([matrix.read(ids[places] - first) for matrix, places, first in pieces])
        assert one is not None, "the forms of the rows can be joined"
        back = as_slice(torch.cat(inside).argsort())
        return one if isinstance(back, slice) else one.rows(back)

    return QuantizedRows(torch.Size((starts[-1], matrices[0].shape[1])), read, _joined_blocks(matrices))


def _joined_blocks(matrices: Sequence[QuantizedRows]) -> BlockRows | None:
    """The blocks of all, if they have one type."""
    parts = [matrix.blocks for matrix in matrices if matrix.blocks is not None]
    if len(parts) < len(matrices) or len({(part.kind, part.count) for part in parts}) > 1:
        return None

    def release() -> None:
        for part in parts:
            part.release()

    return replace(parts[0], addresses=torch.cat([part.addresses for part in parts]), release=release, mapped=parts)
