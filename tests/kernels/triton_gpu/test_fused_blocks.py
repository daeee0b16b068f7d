"""`fused_blocks` for GPUs needs no GPU: it passes sums from block to block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quire_kernels.triton_gpu.fused_blocks import fused_blocks


class Doubling(nn.Module):
    """x -> 2 x."""

    calls = 0

    def forward(self, x: Tensor, fwd: Any) -> Tensor:
        return 2 * x

    def branch(self, x: Tensor, rest: Tensor | None, fwd: Any) -> tuple[Tensor, Tensor]:
        self.calls += 1
        total = x if rest is None else x + rest
        return total, total.clone()


class DoublingAndOne(Doubling):
    """x -> 2 x + 1: it derives from a block and computes something else."""

    def forward(self, x: Tensor, fwd: Any) -> Tensor:
        return super().forward(x, fwd) + 1


def test_sums_are_passed_on_to_the_next_block() -> None:
    blocks = [Doubling(), Doubling()]
    assert fused_blocks(blocks, 1)(torch.ones(1), None) == 4
    assert [block.calls for block in blocks] == [1, 1]


def test_a_block_that_computes_otherwise_than_its_base_is_called_as_a_whole() -> None:
    blocks = [Doubling(), DoublingAndOne(), Doubling()]
    assert fused_blocks(blocks, 1)(torch.ones(1), None) == 10
    assert [block.calls for block in blocks] == [1, 0, 1]
