"""Taps: steps between blocks that keep their input, for drafters that read it (EAGLE 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from quire_models.step.forward_batch import ForwardBatch

Step = Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True)
class BlockTap:
    """Keeps the logit rows of what block `block` reads. It is not traced, so programs end before it."""

    block: int

    def __call__(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> x."""
        fwd.step_cache[self.key] = x.index_select(0, fwd.logit_rows)
        return x

    @property
    def key(self) -> str:
        """Of what it keeps, in `ForwardBatch.step_cache`."""
        return f"input of block {self.block}"


def with_taps(
    steps: Sequence[Step], blocks: Sequence[Step], read: Sequence[int], appends: bool = True
) -> tuple[Step, ...]:
    """`steps`, which contain `blocks` and end with the final norm; the inputs of the blocks in `read` are kept and, if
    `appends`, appended to what the last step returns.
    """
    if not read:
        return tuple(steps)
    tapped: list[Step] = []
    for step in steps:
        tapped += [BlockTap(number) for number in sorted(set(read)) if step is blocks[number]]
        tapped.append(step)
    taps = [BlockTap(number) for number in read]

    def append(x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [L, width] -> [L, (1 + taps) * width]."""
        return torch.cat([x, *(fwd.step_cache[tap.key] for tap in taps)], -1)

    return (*tapped, append) if appends else tuple(tapped)
