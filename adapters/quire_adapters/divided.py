"""Adapters of a model that is divided among ranks: read whole, and cut as the matrices that they change.

An update of a matrix whose inputs are divided is a part of a sum over the ranks, like the matrix's own output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quire_adapters.weights import AdapterWeights, ExpertsUpdate, ExpertUpdate
from quire_kernels.low_rank import LowRankUpdate
from quire_models.sharding.model import AttachedShard

NOT_DIVIDED = "Adapters with {} need whole weights; with --tensor-parallel-size above 1 they cannot be used."


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

    def weights(self, found: AdapterWeights, slices: Any) -> AdapterWeights:
        """The rank's part. slices: returns (start, stop) of the outputs of each fused matrix, by path."""
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
