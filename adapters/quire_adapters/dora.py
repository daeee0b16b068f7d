"""DoRA (arXiv 2402.09353): a low-rank update sets the direction of a weight's rows, and a vector their lengths.

W' = m · (W + B A) / ‖W + B A‖, with the norm of each output. PEFT saves m. Running it needs only `m / norm`, a constant
scale for each output. For embedding tables the norm is that of each column. The base weight is read in blocks: it may
be packed, and steps run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire_adapters.target_modules import row_blocks

Rows = Callable[[Tensor], Tensor]
"""ids (int64) -> float32 rows of a weight."""


def row_norms(rows: Rows, a: Tensor, b: Tensor, device: torch.device) -> Tensor:
    """‖W + b a‖ by rows of W [outputs, inputs]; a [rank, inputs], b [outputs, rank] -> float32, on the CPU."""
    a, b = a.to(device), b.to(device)
    norms = [(rows(ids) + b[ids] @ a).norm(dim=1) for ids in row_blocks(len(b), a.shape[1], device)]
    return torch.cat(norms).cpu()


def column_norms(rows: Rows, a: Tensor, b: Tensor, device: torch.device) -> Tensor:
    """‖E + a b‖ by columns of E [rows, width]; a [rows, rank], b [rank, width] -> float32, on the CPU."""
    a, b = a.to(device), b.to(device)
    squares = torch.zeros(b.shape[1], dtype=torch.float64, device=device)
    for ids in row_blocks(len(a), b.shape[1], device):
        squares += (rows(ids) + a[ids] @ b).square().sum(0, dtype=torch.float64)
    return squares.sqrt().float().cpu()
