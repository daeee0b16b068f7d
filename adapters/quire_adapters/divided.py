"""Adapters of a model that is divided among ranks: read whole, and cut as the matrices that they change.

An update of a matrix whose inputs are divided is a part of a sum over the ranks, like the matrix's own output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from quire_adapters.base_values import BaseValues
from quire_adapters.target_modules import BaseWeight, EmbeddingTarget, LinearTarget, TargetModules, row_blocks
from quire_adapters.weights import AdapterWeights, ExpertsUpdate, ExpertUpdate
from quire_kernels.low_rank import LowRankUpdate
from quire_models.sharding.model import AttachedShard


class AdapterCut:
    """Cuts adapters for one rank."""

    def __init__(self, shard: AttachedShard) -> None:
        self._shard = shard

    def _kept(self, path: str, dim: int) -> Tensor | None:
        """The outputs (dim 0) or inputs (1) that the rank has of a projection, int64; None = all."""
        return self._shard.cut(f"{path}.weight").indices.get(dim)

    def outputs(self, path: str, values: Tensor) -> Tensor:
        """Values of a projection's outputs, [outputs, …]."""
        kept = self._kept(path, 0)
        return values if kept is None else values[kept]

    def inputs(self, path: str, values: Tensor) -> Tensor:
        """Values of a projection's inputs, [inputs]."""
        kept = self._kept(path, 1)
        return values if kept is None else values[kept]

    def has(self, path: str) -> bool:
        """Whether the rank has a module, or a part of it."""
        return self._shard.has(path)

    def weights(self, found: AdapterWeights, slices: Any) -> AdapterWeights:
        """The rank's part. slices: returns (start, stop) of the outputs of each fused matrix, by path."""
        for changed in (found.linear, found.tables, found.experts, found.replaced):
            elsewhere = [path for path in changed if not self.has(path)]
            found.elsewhere += tuple(elsewhere)
            for path in elsewhere:
                del changed[path]
        found.linear = {path: self._linear(path, updates, slices(path)) for path, updates in found.linear.items()}
        found.replaced = {path: self.outputs(path, weight).contiguous() for path, weight in found.replaced.items()}
        found.experts = {path: self._experts(path, update) for path, update in found.experts.items()}
        return found

    def _linear(
        self, path: str, updates: Sequence[LowRankUpdate | None], slices: Sequence[tuple[int, int]]
    ) -> list[LowRankUpdate | None]:
        rows, columns = self._kept(path, 0), self._kept(path, 1)
        found: list[LowRankUpdate | None] = []
        for update, (start, stop) in zip(updates, slices, strict=True):
            if update is None:
                found.append(None)
                continue
            a, b, scale, shift = update
            if rows is not None:
                own = rows[(rows >= start) & (rows < stop)] - start
                b, scale, shift = (None if part is None else part[own] for part in (b, scale, shift))
            if columns is not None:
                a = None if a is None else a[:, columns]
                shift = shift if self._shard.rank.index == 0 else None
            made = LowRankUpdate(a, b, scale, shift)
            found.append(made if any(part is not None for part in made) else None)
        return found

    def _experts(self, path: str, update: ExpertsUpdate) -> ExpertsUpdate:
        first = self._shard.cut(f"{path}.gate_up").indices
        down = self._shard.cut(f"{path}.down").indices
        gate_up = {e: [_rows(u, first.get(1)) for u in found] for e, found in _held(update.gate_up, first.get(0))}
        lower = {e: [_columns(u, down.get(2)) for u in found] for e, found in _held(update.down, down.get(0))}
        return ExpertsUpdate(gate_up, lower)


class DividedValues(BaseValues):
    """The numbers of a model that is divided among ranks. own: the rank's targets.

    What only other ranks have counts as equal, and as 0 or 1: this rank drops it when it cuts the adapter.
    """

    def __init__(self, shard: AttachedShard, own: TargetModules) -> None:
        self._shard, self._own = shard, own

    def equals(self, base: BaseWeight, tensor: Tensor, dtype: torch.dtype) -> bool:
        own = self._own.at(base.parameter)
        if own is None:
            return True
        indices = self._shard.cut(base.parameter).indices
        ids, kept = _own_rows(indices.get(0), base.start, base.shape[0])
        part = tensor[kept] if 1 not in indices else tensor[kept][:, indices[1]]
        blocks = row_blocks(len(ids), part[0].numel() if len(ids) else 1, own.device)
        return all(torch.equal(own.rows(ids[at]).cpu(), part[at].to(dtype).float()) for at in blocks)

    def bias(self, target: LinearTarget) -> Tensor | None:
        whole = target.projection.bias
        own = self._own.at(f"{target.path}.bias")
        if whole is None or own is None:
            return None
        found = torch.zeros(target.shape[0])
        ids, kept = _own_rows(self._shard.cut(f"{target.path}.bias").indices.get(0), target.start, len(found))
        found[kept] = own.rows(ids)
        return found

    def row_norms(self, target: LinearTarget, a: Tensor, b: Tensor) -> Tensor:
        indices = self._shard.cut(f"{target.path}.weight").indices
        own, columns = self._own.at(f"{target.path}.weight"), indices.get(1)
        squares = torch.full(target.shape[:1], 1.0 if columns is None else 0.0, dtype=torch.float64)
        if own is not None:
            ids, kept = _own_rows(indices.get(0), target.start, len(squares))
            a = a if columns is None else a[:, columns]
            for at in row_blocks(len(ids), a.shape[1], own.device):
                squares[kept[at]] = (own.rows(ids[at]) + b[kept[at]] @ a).square().sum(1, dtype=torch.float64)
        return (squares if columns is None else self._shard.add_up(squares)).sqrt().float()

    def column_norms(self, target: EmbeddingTarget, a: Tensor, b: Tensor) -> Tensor:
        rows, own = self._shard.cut(f"{target.path}.weight").indices.get(0), self._own.at(f"{target.path}.weight")
        squares = torch.zeros(target.shape[1], dtype=torch.float64)
        if own is not None:
            ids, kept = _own_rows(rows, 0, target.shape[0])
            for at in row_blocks(len(ids), len(squares), own.device):
                squares += (own.rows(ids[at]) + a[kept[at]] @ b).square().sum(0, dtype=torch.float64)
        return (squares if rows is None else self._shard.add_up(squares)).sqrt().float()


def _own_rows(held: Tensor | None, start: int, count: int) -> tuple[Tensor, Tensor]:
    """(places among the rows that the rank has, the same rows counted from `start`) of those from `start` on."""
    if held is None:
        every = torch.arange(count)
        return every + start, every
    places = ((held >= start) & (held < start + count)).nonzero()[:, 0]
    return places, held[places] - start


def _held(updates: dict[int, list[ExpertUpdate]], held: Tensor | None) -> list[tuple[int, list[ExpertUpdate]]]:
    """The updates of experts that the rank has, by their numbers there."""
    if held is None:
        return list(updates.items())
    return [(own, updates[expert]) for own, expert in enumerate(held.tolist()) if expert in updates]


def _rows(update: ExpertUpdate, kept: Tensor | None) -> ExpertUpdate:
    if kept is None:
        return update
    at = ((kept >= update.start) & (kept < update.start + len(update.b))).nonzero()[:, 0]
    return ExpertUpdate(update.a, update.b[kept[at] - update.start].contiguous(), int(at[0]))


def _columns(update: ExpertUpdate, kept: Tensor | None) -> ExpertUpdate:
    return update if kept is None else ExpertUpdate(update.a[:, kept].contiguous(), update.b, update.start)
