"""Finds out which module of a traced model keeps which state, by the calls of transformers' cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from quire.errors import CheckpointError
from quire_models.parts.state import StateShape, StateTensor
from quire_plugins.transformers_fallback.state.cache import StepCache

Kind: TypeAlias = Literal["conv", "recurrent"]


@dataclass(frozen=True)
class KeptTensor:
    """One tensor of a layer of transformers' cache. index: its number in the layer. shape: for one seq."""

    kind: Kind
    index: int
    shape: tuple[int, ...]
    float32: bool


@dataclass(frozen=True)
class StateUse:
    """What one module keeps. path: of the module. layer: number in the cache. has_previous: numbers of the states of
    the layer that the cache counts as present after a forward.
    """

    path: str
    layer: int
    tensors: tuple[KeptTensor, ...]
    has_previous: tuple[int, ...]

    @property
    def shape(self) -> StateShape:
        """The state as the engine's pool holds it."""
        return StateShape(tuple(StateTensor(each.shape, each.float32) for each in self.tensors))


class TracedCache(StepCache):
    """A cache that notes the modules that read or change state. entered: paths of the modules that run now."""

    def __init__(self, config: Any, entered: Sequence[str]) -> None:
        super().__init__(config=config)
        self._entered = entered
        self.users: dict[tuple[int, Kind, int], set[str]] = {}

    def _note(self, layer: int, kind: Kind, index: int) -> None:
        self.users.setdefault((layer, kind, index), set()).add(self._entered[-1])

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """transformers' method, which is noted."""
        self._note(layer_idx, "conv", state_idx)
        found: Tensor | None = super().get_conv_state(layer_idx, state_idx)
        return found

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """transformers' method, which is noted."""
        self._note(layer_idx, "recurrent", state_idx)
        found: Tensor | None = super().get_recurrent_state(layer_idx, state_idx)
        return found

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """transformers' method, which is noted."""
        self._note(layer_idx, "conv", state_idx)
        found: Tensor = super().update_conv_state(conv_states, layer_idx, state_idx, **kwargs)
        return found

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """transformers' method, which is noted."""
        self._note(layer_idx, "recurrent", state_idx)
        found: Tensor = super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **kwargs)
        return found

    def uses(self) -> tuple[StateUse, ...]:
        """What each module keeps, after a forward of one row. Raises CheckpointError if that is not clear."""
        found = []
        for number, layer in enumerate(self.layers):
            if not isinstance(layer, LinearAttentionCacheLayerMixin):
                continue
            paths = {key[1:]: used for key, used in self.users.items() if key[0] == number}
            every = set().union(*paths.values())
            owners = [path for path in every if not any(path.startswith(f"{other}.") for other in every)]
            for owner in sorted(owners):
                own = [key for key, used in paths.items() if all(f"{path}.".startswith(f"{owner}.") for path in used)]
                kept = tuple(each for key in sorted(own) if (each := _kept(layer, *key)) is not None)
                previous = tuple(i for _, i in own if layer.has_previous_state[i])
                if kept:
                    found.append(StateUse(owner, number, kept, tuple(sorted(set(previous)))))
            present = sum(map(len, (_present(layer, "conv"), _present(layer, "recurrent"))))
            if present != sum(len(use.tensors) for use in found if use.layer == number):
                raise CheckpointError(f"it is not clear which module keeps the state of its layer {number}")
        return tuple(found)


def _present(layer: Any, kind: Kind) -> dict[int, Tensor]:
    states = layer.conv_states if kind == "conv" else layer.recurrent_states
    return {index: tensor for index, tensor in states.items() if tensor is not None}


def _kept(layer: Any, kind: Kind, index: int) -> KeptTensor | None:
    tensor = _present(layer, kind).get(index)
    if tensor is None:
        return None
    return KeptTensor(kind, index, tuple(tensor.shape[1:]), tensor.dtype == torch.float32)


@dataclass(frozen=True)
class Entered:
    """Paths of modules of a model: of those that run at the moment, the innermost one last; and of all that ran."""

    now: list[str] = field(default_factory=list)
    ever: set[str] = field(default_factory=set)


@contextmanager
def entered_modules(model: Any) -> Iterator[Entered]:
    """Note which modules of a model run."""
    entered = Entered()
    hooks = []

    def enter(path: str) -> Any:
        def note(*_: object) -> None:
            entered.now.append(path)
            entered.ever.add(path)

        return note

    def leave(*_: object) -> None:
        entered.now.pop()

    for path, module in model.named_modules():
        hooks += [module.register_forward_pre_hook(enter(path)), module.register_forward_hook(leave, always_call=True)]
    try:
        yield entered
    finally:
        for hook in hooks:
            hook.remove()
