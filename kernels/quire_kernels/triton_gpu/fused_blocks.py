"""The op `fused_blocks` for GPUs: the sum that ends a block is computed by the norm that begins the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from quire_kernels.candidates.capture import capturable


@capturable
def fused_blocks(blocks: Sequence[Callable[[Any, Any], Any]], width: int) -> Callable[[Tensor, Any], Tensor]:
    """A block may have a method branch(x, rest, fwd): two tensors whose sum is block(x + rest, fwd)."""
    steps = [(block, _branch(block)) for block in blocks]

    def run(x: Tensor, fwd: Any) -> Tensor:
        rest: Tensor | None = None
        for block, branch in steps:
            if branch is None:
                x, rest = block(x if rest is None else x.add_(rest), fwd), None
            else:
                x, rest = branch(x, rest, fwd)
        return x if rest is None else x.add_(rest)

    return run


def _branch(block: Any) -> Callable[..., Any] | None:
    """The block's method `branch`; None if a class derived from the one that defines it has a `forward` of its own."""
    branch, forward = (
        next((c for c in type(block).__mro__ if name in vars(c)), None) for name in ("branch", "forward")
    )
    return block.branch if branch is not None and branch is forward else None
