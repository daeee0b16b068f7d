"""The op `act` without a new tensor where torch can work in place: it may overwrite its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from quire import OpImpl, hookimpl
from quire.records import OpQuery

if TYPE_CHECKING:
    from torch import Tensor


def supports(query: OpQuery) -> str | None:
    """Rounding once at the end needs float32, in which nothing is rounded on the way."""
    return None if query.dtype == "float32" else f"is for float32, not {query.dtype}"


def load() -> Callable[..., Tensor]:
    """Torch is imported here, not when plugins are listed."""
    import torch.nn.functional as F

    from quire_kernels.reference import act as reference

    def act(x: Tensor, act: str) -> Tensor:
        if act == "silu":
            return F.silu(x, inplace=True)
        if act == "relu":
            return x.relu_()
        if act in ("sigmoid", "tanh"):
            return x.sigmoid_() if act == "sigmoid" else x.tanh_()
        return reference(x, act)

    return act


@hookimpl
def quire_ops() -> Iterable[OpImpl]:
    """One implementation, preferred to the built-in ones."""
    yield OpImpl("inplace-act", "act", supports, load, priority=10)
