"""Embedding tables: in the model's data type, or quantized if the checkpoint's table is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from quire_kernels.ops import MatrixPlace
from quire_models.modules.projection import ProjectionDelta

if TYPE_CHECKING:
    from quire_kernels.ops import BoundLinear
    from quire_models.modules.builder import ModuleBuilder


class EmbeddingTable(nn.Module):
    """An embedding table. delta: set by an adapter runtime; called with the looked-up rows and their ids."""

    def __init__(self, rows: int, width: int, builder: ModuleBuilder) -> None:
        super().__init__()
        self.count, self.width = rows, width
        self.weight = builder.parameter(rows, width)
        self.delta: ProjectionDelta | None = None
        self._ops, self._dtype = builder.ops, builder.dtype
        self._quantized: Any = None

    def put_quantized(self, parameter: str, index: tuple[int | slice, ...], matrix: Any) -> bool:
        """Take the table from a quantized checkpoint, in place of the parameter; False for a part of it."""
        if index:
            return False
        # the rows that are looked up are exact with 16 bits
        self._quantized = matrix.bind(self._ops, None, self._dtype, gated=False, activation_bits=16)
        self.weight.data = self.weight.new_empty(0, self.width)
        return True

    def packed_matrices(self) -> Sequence[BoundLinear]:
        """The table, if it is quantized."""
        return () if self._quantized is None else (self._quantized,)

    def places(self, outputs: Sequence[int]) -> Sequence[MatrixPlace]:
        """What a packed table must be. Raises ValueError if it does not have so many rows."""
        if list(outputs) != [self.count]:
            raise ValueError(f"{self.count} rows are not {list(outputs)}")
        return [MatrixPlace((self.count, self.width), None, self._dtype, gated=False)]

    def put_packed(self, matrices: Sequence[BoundLinear]) -> None:
        """Take the packed table in place of the parameter."""
        (self._quantized,) = matrices
        self.weight.data = self.weight.new_empty(0, self.width)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the table for ids int64, [len(ids), width]. May be called from any thread."""
        if self._quantized is None:
            return self.weight.data.index_select(0, ids)
        found: Tensor = self._quantized.unpacked(ids)
        return found

    def look_up(self, ids: Tensor, scale: float = 1.0) -> Tensor:
        """Rows of the table times `scale`, as a new tensor."""
        if self._quantized is None:
            return self._ops.embedding(ids, self.weight, scale)
        found: Tensor = self._quantized.unpacked(ids)
        return found if scale == 1.0 else found.mul_(scale)
