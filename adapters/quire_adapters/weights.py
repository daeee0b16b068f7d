"""The weights of one adapter by the paths of our modules: checked and scaled, but not yet packed."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire_kernels.low_rank import LowRankUpdate


def is_head(path: str) -> bool:
    """Whether a projection computes the model's output: logits or classes."""
    return path == "head" or path.startswith("heads.")


def can_be_replaced(path: str) -> bool:
    """Whether adapters may replace a projection's weight: that of a head, or one outside of a tower's blocks."""
    return is_head(path) or (path.startswith("tower.") and ".blocks." not in path)


def is_after_hidden_states(path: str) -> bool:
    """Whether a projection comes after the hidden states, so that its inputs are logits rows instead of tokens."""
    return path == "embed_out" or is_head(path)


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingUpdate:
    """The change of a row looked up in a table: (the row, or that of `replaced`) · scale + a[id] b.

    replaced: [rows, width], as looked up. a: [rows, rank]. b: float32 [rank, width]. scale: float32 [width]. Each of
    them may be None.
    """

    replaced: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    scale: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.replaced, self.a, self.b, self.scale) if t is not None)

    def to(self, device: torch.device) -> EmbeddingUpdate:
        tensors = (self.replaced, self.a, self.b, self.scale)
        return EmbeddingUpdate(*(t if t is None else t.to(device) for t in tensors))


@dataclass(frozen=True, slots=True, eq=False)
class ExpertUpdate:
    """What is added to the outputs of a matrix of one expert, from output `start` on: x aᵀ bᵀ.

    a: [rank, inputs]. b: [outputs, rank].
    """

    a: Tensor
    b: Tensor
    start: int


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsUpdate:
    """The updates of the experts of one block, by the number of the expert."""

    gate_up: dict[int, list[ExpertUpdate]] = field(default_factory=dict)
    down: dict[int, list[ExpertUpdate]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        updates = [u for matrix in (self.gate_up, self.down) for expert in matrix.values() for u in expert]
        return sum(t.numel() * t.element_size() for u in updates for t in (u.a, u.b))

    def to(self, device: torch.device) -> ExpertsUpdate:
        def moved(matrix: dict[int, list[ExpertUpdate]]) -> dict[int, list[ExpertUpdate]]:
            return {i: [ExpertUpdate(u.a.to(device), u.b.to(device), u.start) for u in us] for i, us in matrix.items()}

        return ExpertsUpdate(moved(self.gate_up), moved(self.down))


@dataclass(slots=True, eq=False)
class AdapterWeights:
    """All weights of one adapter, by module path.

    linear: for each slice of a projection its update. tables, experts: theirs. replaced: a weight [outputs, inputs] in
    place of a projection's own. rank: the largest rank. targets: last names of the modules, as the adapter has them.
    elsewhere: paths of modules that it changes at other stages of the model.
    """

    linear: dict[str, list[LowRankUpdate | None]] = field(default_factory=dict)
    tables: dict[str, EmbeddingUpdate] = field(default_factory=dict)
    experts: dict[str, ExpertsUpdate] = field(default_factory=dict)
    replaced: dict[str, Tensor] = field(default_factory=dict)
    rank: int = 0
    targets: dict[str, None] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()

    @property
    def _paths(self) -> tuple[str, ...]:
        return (*self.linear, *self.replaced, *self.tables, *self.experts, *self.elsewhere)

    @property
    def after_hidden(self) -> bool:
        """Whether it changes modules after the hidden states."""
        return any(map(is_after_hidden_states, self._paths))

    @property
    def in_tower(self) -> bool:
        """Whether it changes modules that make embeddings of media."""
        return any(path.startswith("tower.") for path in self._paths)
