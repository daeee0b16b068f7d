"""Logits and settings for the sampling ops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire_kernels import reference
from quire_kernels.pytorch import ops as torch_ops

OPS = ("argmax", "sample", "logprobs")


PLAIN: dict[str, Any] = {
    "reference": reference,
    "torch": SimpleNamespace(argmax=reference.argmax, sample=torch_ops.sample, logprobs=torch_ops.logprobs),
}

SIZES = [1, 2, 15, 16, 17, 127, 128, 129, 1000, 8191, 8192, 8193, 20_000, 50_000]
"""Of vocabularies: about the widths of vectors, runs and pieces of the C++ ops."""


def normal(rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def apart(vocab: int, step: float = 0.37, seed: int = 0) -> Tensor:
    """Logits [vocab] of which no two come closer than `step`, in any order."""
    return -step * torch.randperm(vocab, generator=torch.Generator().manual_seed(seed)).float()


def settings(
    rows: int,
    uniform: Any = 0.5,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
) -> tuple[np.ndarray, ...]:
    """Arguments of `sample` after the logits; a number stands for all rows."""
    kinds = ((temperature, float), (uniform, float), (top_k, np.int64), (top_p, float), (min_p, float))
    return tuple(np.broadcast_to(np.asarray(value, kind), (rows,)).copy() for value, kind in kinds)
