"""Which part of a parameter of the whole model a rank's parameter is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from quire_kernels.quantized import QuantizedMatrix
from quire_kernels.quantized_rows import QuantizedRows, as_slice
from quire_models.loading.mapping import ParameterSlice

Index = Tensor | slice


@dataclass(frozen=True, eq=False)
class Cut:
    """indices: for each dimension that is divided, int64, the places in the whole parameter, in the rank's order.

    adds: whether the rank has the numbers; the others have zeros, because the numbers are added once to a sum over the
    ranks.
    """

    indices: Mapping[int, Tensor] = field(default_factory=dict)
    adds: bool = True

    def place(self, index: Sequence[int | slice], shape: Sequence[int]) -> tuple[ParameterIndex, ParameterIndex] | None:
        """(where a slice of the whole parameter is in the rank's, what of the slice that is); None if the rank has
        nothing of it. shape: of the whole parameter.
        """
        ours: list[int | slice] = []
        theirs: list[Index] = []
        for dim, size in enumerate(shape):
            item = index[dim] if dim < len(index) else slice(None)
            kept = self.indices.get(dim)
            if isinstance(item, int):
                if kept is None:
                    ours.append(item)
                    continue
                at = (kept == item).nonzero()[:, 0]
                if not len(at):
                    return None
                ours.append(int(at[0]))
                continue
            first, last, _ = item.indices(size)
            if kept is None:
                ours.append(item if dim < len(index) else slice(None))
                theirs.append(slice(None))
                continue
            at = ((kept >= first) & (kept < last)).nonzero()[:, 0]
            if not len(at):
                return None
            assert int(at[-1] - at[0]) + 1 == len(at), "a rank has its part of a slice in one piece"
            ours.append(slice(int(at[0]), int(at[-1]) + 1))
            theirs.append(as_slice(kept[at] - first))
        while ours and ours[-1] == slice(None):
            ours.pop()
        return tuple(ours), tuple(theirs)


ParameterIndex = tuple[Any, ...]

WHOLE = Cut()


def columns_of(*pieces: tuple[int, range | Tensor]) -> Tensor:
    """Indices into pieces that follow one another: each is its size, and the numbers kept of it."""
    starts = [0, *accumulate(size for size, _ in pieces)]
    return torch.cat([_as_tensor(kept) + first for (_, kept), first in zip(pieces, starts, strict=False)])


def of_heads(heads: range, size: int) -> range:
    """The columns of heads of so many columns each."""
    return range(heads.start * size, heads.stop * size)


def _as_tensor(kept: range | Tensor) -> Tensor:
    return kept if isinstance(kept, Tensor) else torch.arange(kept.start, kept.stop)


def cut(weight: Any, indices: Sequence[Index]) -> Any:
    """What `indices` select in each dimension of a tensor, or of a quantized matrix, or of one for each expert.

    A view where neighboring ones are selected. Raises ValueError for columns that cannot be cut.
    """
    if isinstance(weight, Tensor):
        for dim, index in enumerate(indices):
            weight = _selected(weight, dim, index)
        return weight
    if isinstance(weight, Sequence):
        experts, *rest = indices
        kept = list(weight)[experts] if isinstance(experts, slice) else [weight[i] for i in experts.tolist()]
        return [cut(matrix, rest) for matrix in kept]
    rows, columns = (*indices, slice(None), slice(None))[:2]
    weight = weight if rows == slice(None) else weight.rows(rows)
    return weight if isinstance(columns, slice) and columns == slice(None) else _cut_columns(weight, columns)


def _selected(weight: Tensor, dim: int, index: Index) -> Tensor:
    if isinstance(index, slice):
        first, last, _ = index.indices(weight.shape[dim])
        return weight.narrow(dim, first, last - first)
    return weight.index_select(dim, index.to(weight.device))


def _cut_columns(matrix: QuantizedMatrix | QuantizedRows, columns: Index) -> QuantizedMatrix | QuantizedRows:
    if not isinstance(columns, slice):
        raise ValueError("columns of a quantized matrix are cut in one piece")
    first, last, _ = columns.indices(matrix.shape[1])
    if isinstance(matrix, QuantizedMatrix):
        return matrix.columns(first, last)
    rows = matrix
    return QuantizedRows(
        torch.Size((rows.shape[0], last - first)), lambda some: rows.read(some).columns(first, last), None
    )


def slice_names(found: Mapping[str, ParameterSlice], shapes: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Quire's name of each slice of parameters of these shapes, by `slice_key`."""
    return {slice_key(slice_, shapes[slice_.parameter]): name for name, slice_ in found.items()}


def slice_key(slice_: ParameterSlice, shape: Sequence[int]) -> str:
    """Equal for slices of the same numbers. shape: of the parameter."""
    items = [
        str(item) if isinstance(item, int) else "{}:{}".format(*item.indices(size))
        for item, size in zip(slice_.index, shape, strict=False)
    ]
    while items and items[-1] == f"0:{shape[len(items) - 1]}":
        items.pop()
    return f"{slice_.parameter}[{','.join(items)}]"
