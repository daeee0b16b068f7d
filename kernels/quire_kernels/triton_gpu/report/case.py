"""A call of a Triton op for the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TOKENS = 64
"""Rows of a decode step."""


@dataclass(frozen=True)
class Case:
    """One call of an op. bytes: that it must read and write. flops: of its products."""

    op: str
    call: Callable[[], Any]
    bytes: float
    flops: float = 0.0


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")
