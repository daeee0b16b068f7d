"""The operation `act` in place, without a new tensor: the operation may overwrite its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from quire.plugin import OpImpl, OpQuery, hookimpl

if TYPE_CHECKING:
    from torch import Tensor


def supports(query: OpQuery) -> str | None:
    """Only float32: with other dtypes, working in place would round intermediate results."""
    return None if query.dtype == "float32" else f"is for float32, not {query.dtype}"


def load() -> Callable[..., Tensor]:
    """Import torch here, so that listing plugins does not."""
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
    """An implementation with a higher priority than the built-in ones."""
    yield OpImpl("inplace-act", "act", supports, load, priority=10)
