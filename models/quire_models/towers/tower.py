"""The call of a tower: items, and contexts that say which tokens attend to each other and which adapters apply.

A tower's module is called once for several items (images or audio), `tower(items, call)`: items[i] has the tensors of
item i by name, on the device, floats in the model's data type. It returns the embedding rows of each item, [length_i,
width]. The result of one item must not depend on the others.

    def forward(self, items, call):
        x = torch.cat([item["frames"] for item in items])             # [tokens of all, size]
        counts = [len(item["frames"]) for item in items]
        return list(self.up(x, call.context(counts)).split(counts))   # a context in place of a `ForwardBatch`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from quire_kernels.ops import AttentionMetadata

BindCounts: TypeAlias = Callable[[Sequence[int]], Any]
"""Maps the number of tokens of each item to the value of `TowerContext.adapters`."""


@dataclass(frozen=True, slots=True, eq=False)
class TowerContext:
    """What modules get as `fwd` where item i has a given number of tokens, concatenated in the order of the call.

    adapters: those of the items, bound for these tokens; None if no adapter changes the tower. rows: which tokens
    attend to each other, for `row_attention`. step_cache: data that the layers share.
    """

    adapters: Any
    rows: AttentionMetadata
    step_cache: dict[Any, Any] = field(default_factory=dict)


class TowerCall:
    """One call of a tower. bind: binds the adapters of the items; None if they have none."""

    def __init__(self, device: torch.device | str, bind: BindCounts | None = None) -> None:
        self._device = torch.device(device)
        self._bind = bind
        self._bound: dict[tuple[int, ...], Any] = {}
        self._contexts: dict[tuple[tuple[int, ...], tuple[int, ...]], TowerContext] = {}

    def context(self, counts: Sequence[int], lengths: Sequence[int] | None = None) -> TowerContext:
        """The context in which item i has counts[i] tokens; the same object for the same arguments.

        lengths: of the runs of tokens that attend to each other (tiles or windows), the same number of tokens in
        total; by default each item is one run.
        """
        own, runs = tuple(counts), tuple(counts if lengths is None else lengths)
        assert sum(own) == sum(runs), f"runs of {sum(runs)} tokens, but items of {sum(own)}"
        if (own, runs) not in self._contexts:
            if own not in self._bound:
                self._bound[own] = self._bind(own) if self._bind else None
            self._contexts[own, runs] = TowerContext(self._bound[own], AttentionMetadata.unpaged(runs, self._device))
        return self._contexts[own, runs]


Items: TypeAlias = Sequence[Mapping[str, Tensor]]
"""The tensors of each item of a call, by name."""


@runtime_checkable
class SupportsDummyInput(Protocol):
    """A tower that can create a large input, so that the memory it needs can be measured."""

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """Tensors of an item as large as usual inputs get, on the device, and its number of embedding rows."""
        ...


@runtime_checkable
class UsesEmbeddings(Protocol):
    """A tower that reads the decoder's embedding table (text encoders). The engine calls it once, before any input."""

    def use_embeddings(self, rows: Callable[[Tensor], Tensor]) -> None:
        """rows: ids int64 [n] -> rows of the table, [n, width], not scaled."""
        ...


@runtime_checkable
class UsesModel(Protocol):
    """A tower that computes with matrices of the model itself."""

    def use_model(self, model: Any) -> None:
        """model: the module of the decoder, which has the tower from now on."""
        ...


def attach_tower(module: Any, tower: nn.Module) -> None:
    """Make it the tower of a model, and give it the model's embedding table if it reads that."""
    module.tower = tower
    if isinstance(tower, UsesModel):
        tower.use_model(module)
    if isinstance(tower, UsesEmbeddings):
        tower.use_embeddings(module.embed_rows)
