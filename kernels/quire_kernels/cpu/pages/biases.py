"""Biases of relative positions as C++ reads them."""

from __future__ import annotations

from torch import Tensor

from quire_kernels.attention import PositionBiases

BLOCK = 64
"""Positions of a block: `BLOCK` in `csrc/attention/attention_block.hpp`."""


def padded_biases(biases: PositionBiases | None) -> tuple[Tensor | None, int]:
    """Those of blocks wherever they begin, [H * (2 (R + BLOCK) + 1)], and R; (None, 0) for None."""
    return (None, 0) if biases is None else (biases.padded(BLOCK), biases.reach)
