"""What a step must not do inside a CUDA graph, found on a CPU by a mode that watches every operation of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

WAIT = (
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "equal",
    "unique",
    "_unique2",
    "is_nonzero",
    "bincount",
)
"""Operations whose result the host reads, or whose result's shape depends on values."""

CREATE = ("arange", "zeros", "ones", "empty", "full", "eye", "rand", "randn", "scalar_tensor", "tensor")
"""Operations that create a tensor on the CPU unless they are given a device."""

Launches = list[tuple[str, tuple[tuple[int, ...], ...]]]


class Discipline(TorchDispatchMode):
    """Collects the operations of a step with the shapes they get. Raises AssertionError for what cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Launches = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        assert name not in WAIT, f"the host waits for the device in {name}"
        assert name not in ("lift_fresh", "lift_fresh_copy"), "a tensor is made of numbers on the host"
        assert name not in CREATE or kwargs.get("device") is not None, f"{name} creates a tensor on the CPU"
        shapes = tuple(tuple(each.shape) for each in torch.utils._pytree.tree_leaves(args) if isinstance(each, Tensor))
        self.launches.append((name, shapes))
        return func(*args, **kwargs)


@contextmanager
def no_arrays_of_numpy(monkeypatch: Any) -> Iterator[None]:
    """Inside, no array of numpy becomes a tensor: its values would be those of the captured step for ever."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("an array of numpy becomes a tensor")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "from_numpy", refuse)
        yield


class WatchedSteps:
    """A recorder of `quire_models.graphs`: each launch must do what the capture did, in the same shapes."""

    def __init__(self, monkeypatch: Any) -> None:
        self._monkeypatch, self.launches = monkeypatch, 0

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        captured = self._watched(run)

        def launch() -> None:
            self.launches += 1
            assert self._watched(run) == captured

        return launch

    def _watched(self, run: Callable[[], None]) -> Launches:
        with Discipline() as mode, no_arrays_of_numpy(self._monkeypatch):
            run()
        return mode.launches


def unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """An op of which only the call counts, since a kernel of a GPU takes its place."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call
