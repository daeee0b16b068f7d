"""Biases of relative positions as C++ reads them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

BLOCK = 64
"""Positions of a block: `BLOCK` in `csrc/attention/attention_block.hpp`."""


def padded_biases(biases: Tensor | None) -> tuple[Tensor | None, int]:
    """[H, 2 R + 1] -> (float32 [H * (2 R + 1 + 2 BLOCK)], R): a block's biases lie side by side wherever it begins.

    (None, 0) for None.
    """
    if biases is None:
        return None, 0
    wide = F.pad(biases.float()[None], (BLOCK, BLOCK), mode="replicate")
    return wide[0].flatten().contiguous(), biases.shape[1] // 2
