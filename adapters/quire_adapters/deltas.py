"""Deltas of adapters on modules other than plain matrices: embedding tables, replaced weights, and experts.

Each is the `delta` of one such module and has weights for each adapter slot. Rows without an adapter stay
bit-identical.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from quire_adapters.weights import EmbeddingUpdate, ExpertsUpdate, ExpertUpdate
from quire_kernels.low_rank import AdapterSlots, Segments
from quire_kernels.ops import BoundLinear

if TYPE_CHECKING:
    from quire_models.modules.experts import ExpertInputs, Experts

W = TypeVar("W")


class SlotWeights(Generic[W]):
    """The adapters' weights for one module, by slot. An empty slot changes nothing."""

    def __init__(self) -> None:
        self._weights: dict[int, W] = {}

    def put(self, slot: int, weights: W) -> None:
        self._weights[slot] = weights

    def clear(self, slot: int) -> None:
        self._weights.pop(slot, None)

    def in_segments(self, segments: Segments) -> Iterator[tuple[Tensor, Tensor, W]]:
        """For each slot in use: its tokens (int64), the factors of its delta [tokens], and its weights."""
        starts = segments.host.starts
        for i, slot in enumerate(segments.host.slots.tolist()):
            if slot in self._weights:
                mine = slice(int(starts[i]), int(starts[i + 1]))
                yield segments.tokens[mine].long(), segments.weights[mine], self._weights[slot]

    def is_batch_invariant(self, segments: Any) -> bool:
        """As `ProjectionDelta.is_batch_invariant`: it is where no adapter in use changes the module."""
        return isinstance(segments, Segments) and not any(
            slot in self._weights for slot in segments.host.slots.tolist()
        )


class EmbeddingDelta(SlotWeights[EmbeddingUpdate]):
    """The delta of an embedding table, called with the rows looked up and their ids."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def put(self, slot: int, weights: EmbeddingUpdate) -> None:
        super().put(slot, weights.to(self._device))

    def __call__(self, y: Tensor, x: Tensor, adapters: Segments) -> Tensor:
        """y: [tokens, width]. x: ids, int64 [tokens]."""
        for tokens, factors, update in self.in_segments(adapters):
            ids, before = x[tokens], y[tokens].float()
            rows = before if update.replaced is None else update.replaced[ids].float()
            rows = rows if update.scale is None else rows * update.scale
            if update.a is not None and update.b is not None:
                rows = rows + update.a[ids].float() @ update.b
            y[tokens] = (before + (rows - before) * factors[:, None]).to(y.dtype)
        return y


class ReplacedWeightDelta(SlotWeights[BoundLinear]):
    """The delta of a projection whose weight adapters may replace; low-rank deltas apply after that."""

    def __init__(self, adapter_slots: AdapterSlots) -> None:
        super().__init__()
        self._adapter_slots = adapter_slots

    def is_batch_invariant(self, segments: Any) -> bool:
        of_slots = getattr(self._adapter_slots, "is_batch_invariant", None)
        return super().is_batch_invariant(segments) and of_slots is not None and bool(of_slots(segments))

    def __call__(self, y: Tensor, x: Tensor, adapters: Segments) -> Tensor:
        """y: [rows, outputs], float32 for logits. x: [rows, width]."""
        for rows, factors, linear in self.in_segments(adapters):
            before = y[rows].float()
            y[rows] = torch.lerp(before, linear(x[rows], float32=True), factors[:, None]).to(y.dtype)
        return self._adapter_slots(y, x, adapters)


@dataclass(frozen=True, eq=False)
class _TokenShare:
    """One adapter's part in recomputed tokens. factors: [tokens], 0 for tokens that do not use it."""

    factors: Tensor
    update: ExpertsUpdate


class ExpertsDelta(SlotWeights[ExpertsUpdate]):
    """The delta of experts. It recomputes the tokens whose adapters change them, as updates precede the activation."""

    def __init__(self, experts: Experts, device: torch.device) -> None:
        super().__init__()
        self._experts, self._device = experts, device

    def put(self, slot: int, weights: ExpertsUpdate) -> None:
        super().put(slot, weights.to(self._device))

    def __call__(self, y: Tensor, x: ExpertInputs, adapters: Segments) -> Tensor:
        """y: [tokens, width], the output of the base experts. x: their inputs."""
        found = list(self.in_segments(adapters))
        if not found:
            return y
        tokens = torch.unique(torch.cat([mine for mine, _, _ in found]))
        shares = []
        for mine, factors, update in found:
            spread = torch.zeros(len(tokens), device=y.device)
            shares.append(_TokenShare(spread.index_copy_(0, torch.searchsorted(tokens, mine), factors), update))
        y[tokens] = self._recompute(x.x[tokens], x.weights[tokens], x.chosen[tokens], shares).to(y.dtype)
        return y

    def _recompute(self, x: Tensor, weights: Tensor, chosen: Tensor, shares: list[_TokenShare]) -> Tensor:
        """x [tokens, width]; weights and chosen [tokens, top_k] -> float32 [tokens, width]."""
        out, bound = torch.zeros(x.shape, device=x.device), self._experts.bound
        first = self._experts.mlp.first
        for number in chosen.unique().tolist():
            expert = number - (first or 0)
            if first is not None and not 0 <= expert < self._experts.count:
                continue  # another rank has it
            tokens, which = (chosen == number).nonzero(as_tuple=True)
            factors, given = weights[tokens, which, None], x[tokens]
            if self._experts.mlp.weighs_inputs:
                given = (given * factors).to(x.dtype)
            h = bound.product(False, expert, given).float()
            for share in shares:
                _add(h, given, share.factors[tokens], share.update.gate_up.get(expert, []))
            activated = bound.activate(h.to(x.dtype))
            result = bound.product(True, expert, activated).float()
            for share in shares:
                _add(result, activated, share.factors[tokens], share.update.down.get(expert, []))
            out.index_add_(0, tokens, result if self._experts.mlp.weighs_inputs else result * factors)
        return out


def _add(y: Tensor, x: Tensor, factors: Tensor, updates: list[ExpertUpdate]) -> None:
    """y[t] += factors[t] · x[t] aᵀ bᵀ, in float32; a factor of 0 adds nothing."""
    mine = factors.nonzero()[:, 0]
    for update in updates:
        added = (x[mine].float() @ update.a.float().T * factors[mine, None]) @ update.b.float().T
        y[mine, update.start : update.start + len(update.b)] += added
