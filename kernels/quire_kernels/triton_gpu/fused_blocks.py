"""The op `fused_blocks` for GPUs: the sum that ends a block is computed by the norm that begins the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from quire_kernels.candidates.capture import capturable


@capturable
def fused_blocks(blocks: Sequence[Callable[[Any, Any], Any]], width: int) -> Callable[[Tensor, Any], Tensor]:
    """A block may have a method branch(x, rest, fwd): two tensors whose sum is block(x + rest, fwd)."""
    steps = [(block, getattr(block, "branch", None)) for block in blocks]

    def run(x: Tensor, fwd: Any) -> Tensor:
        rest: Tensor | None = None
        for block, branch in steps:
            if branch is None:
                x, rest = block(x if rest is None else x.add_(rest), fwd), None
            else:
                x, rest = branch(x, rest, fwd)
        return x if rest is None else x.add_(rest)

    return run
