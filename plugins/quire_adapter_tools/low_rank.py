"""The best approximation of a matrix by one of low rank, by its singular values (Eckart and Young 1936)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EXACT = 1024
"""Up to this smaller dimension all singular values are computed; beyond, only the largest (arXiv 0909.4061)."""

OVERSAMPLING, ITERATIONS = 16, 4
SEED = 0


@dataclass(frozen=True, eq=False)
class TruncatedMatrix:
    """A difference d [outputs, inputs] ≈ b a. a: [rank, inputs]. b: [outputs, rank].

    norm: ‖d‖, residual: ‖d - b a‖, both Frobenius.
    """

    a: Tensor
    b: Tensor
    norm: float
    residual: float

    @property
    def rank(self) -> int:
        return len(self.a)

    @property
    def error(self) -> float:
        """The residual as a share of the norm."""
        return self.residual / self.norm if self.norm else 0.0


def truncated(d: Tensor, max_rank: int, energy: float, dtype: torch.dtype) -> TruncatedMatrix:
    """The approximation of d (float32 [outputs, inputs]) with the smallest rank that keeps a share of ‖d‖².

    max_rank: the largest rank, whatever share it keeps. energy: the share, from 0 to 1. dtype: of a and b; the residual
    is that of the rounded tensors.
    """
    u, s, v = _decomposed(d, min(max_rank, *d.shape))
    squares = s.double().square()
    total = float(d.double().square().sum())
    kept = torch.cumsum(squares, 0) / total if total else torch.ones_like(squares)
    rank = min(int((kept < energy).sum()) + 1, max_rank, len(s))
    root = s[:rank].sqrt()
    a, b = (root[:, None] * v[:rank]).to(dtype), (u[:, :rank] * root).to(dtype)
    residual = float(torch.linalg.matrix_norm(d - b.float() @ a.float()))
    return TruncatedMatrix(a.contiguous(), b.contiguous(), total**0.5, residual)


def _decomposed(d: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """u [outputs, k], s [k] from large to small, v [k, inputs], with k at least `rank`."""
    wanted = rank + OVERSAMPLING
    if min(d.shape) <= EXACT or wanted * 2 > min(d.shape):
        return torch.linalg.svd(d, full_matrices=False)
    generator = torch.Generator().manual_seed(SEED)
    basis = torch.linalg.qr(d @ torch.randn(d.shape[1], wanted, generator=generator)).Q
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(d @ torch.linalg.qr(d.T @ basis).Q).Q
    u, s, v = torch.linalg.svd(basis.T @ d, full_matrices=False)
    return basis @ u, s, v
