"""DoRA (arXiv 2402.09353): low rank turns the columns of a weight, and a vector says how long they are.

W' = m · (W + B A) / ‖W + B A‖, with the norm of each output. PEFT keeps m; what W' is of W is a constant scale for each
output, so `m / norm` is all that running it needs. For tables the norm is that of each column.

The base weight is read in pieces: it may be packed, and others compute meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire_adapters.sites import pieces

Rows = Callable[[Tensor], Tensor]
"""ids (int64) -> float32 rows of a weight."""


def row_norms(rows: Rows, a: Tensor, b: Tensor, device: torch.device) -> Tensor:
    """‖W + b a‖ by rows of W [outputs, inputs]; a [rank, inputs], b [outputs, rank] -> float32, on the host."""
    a, b = a.to(device), b.to(device)
    found = [(rows(ids) + b[ids] @ a).norm(dim=1) for ids in pieces(len(b), a.shape[1], device)]
    return torch.cat(found).cpu()


def column_norms(rows: Rows, a: Tensor, b: Tensor, device: torch.device) -> Tensor:
    """‖E + a b‖ by columns of E [rows, width]; a [rows, rank], b [rank, width] -> float32, on the host."""
    a, b = a.to(device), b.to(device)
    squares = torch.zeros(b.shape[1], dtype=torch.float64, device=device)
    for ids in pieces(len(a), b.shape[1], device):
        squares += (rows(ids) + a[ids] @ b).square().sum(0, dtype=torch.float64)
    return squares.sqrt().float().cpu()
