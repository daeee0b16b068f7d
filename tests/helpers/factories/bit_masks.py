"""Bit masks of grammar matchers: written and read."""

from collections.abc import Iterable

import numpy as np
import torch


def allow(mask: torch.Tensor, ids: Iterable[int]) -> None:
    """Allow these ids and no others."""
    mask.zero_()
    words = mask.numpy().view(np.uint32)
    for i in ids:
        words[i // 32] |= np.uint32(1 << i % 32)


def allowed(mask: torch.Tensor) -> list[int]:
    """The ids that are allowed."""
    return np.flatnonzero(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")).tolist()


def empty(vocab_size: int) -> torch.Tensor:
    """A mask of so many ids; what it holds means nothing."""
    return torch.full((-(-vocab_size // 32),), -1, dtype=torch.int32)
