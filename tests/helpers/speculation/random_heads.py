"""Random draft heads for the tiny models, in the published formats."""

from __future__ import annotations

from pathlib import Path

import torch
from head_rig import Tensors, write_head

from quire_testing.tiny import SIZES, VOCAB_SIZE

WIDTH = SIZES["hidden_size"]


def medusa_tensors(heads: int = 3, blocks: int = 1, bias: bool = True, seed: int = 5) -> Tensors:
    """Heads with the names of FasterDecoding."""
    generator = torch.Generator().manual_seed(seed)
    found: Tensors = {}
    for head in range(heads):
        for block in range(blocks):
            found[f"{head}.{block}.linear.weight"] = torch.randn(WIDTH, WIDTH, generator=generator) * 0.2
            if bias:
                found[f"{head}.{block}.linear.bias"] = torch.randn(WIDTH, generator=generator) * 0.2
        found[f"{head}.{blocks}.weight"] = torch.randn(VOCAB_SIZE, WIDTH, generator=generator)
    return found


def random_medusa(folder: Path) -> Path:
    return write_head(folder, {"medusa_num_heads": 3}, medusa_tensors(), "medusa_lm_head.pt")
