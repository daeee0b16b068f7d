"""Norms as parts: frozen descriptions that import no torch; see `quire_models.parts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from quire_models.make import Make


@dataclass(frozen=True)
class Norm:
    """Root-mean-square norm; `offset` is added to the stored weight (Gemma stores weight - 1). affine: has a weight."""

    eps: float = 1e-6
    offset: float = 0.0
    affine: bool = True

    def build(self, width: int, make: Make) -> nn.Module:
        """A module [..., width] -> [..., width]."""
        from quire_models.norms import RmsNorm

        return RmsNorm(width, self, make)


@dataclass(frozen=True)
class LayerNorm:
    """Norm to mean 0 and variance 1, with weight and bias unless `affine` is off, or weight alone if `bias` is.

    offset: added to the stored weight (Nemotron stores weight - 1).
    """

    eps: float = 1e-5
    affine: bool = True
    bias: bool = True
    offset: float = 0.0

    def build(self, width: int, make: Make) -> nn.Module:
        """A module [..., width] -> [..., width]."""
        from quire_models.norms import MeanNorm

        return MeanNorm(width, self, make)


@dataclass(frozen=True)
class PerHead:
    """As `Attention.qk_norm`: a norm of each head that has a weight of its own; `norm` has neither bias nor offset.

    The weight is [heads, head_dim], or one tensor for each head: `attn.q_norm.3.weight`.
    """

    norm: Norm | LayerNorm

    def build_heads(self, heads: int, head_dim: int, make: Make) -> nn.Module:
        """A module [..., heads, head_dim] -> the same shape."""
        from quire_models.norms import HeadNorms

        return HeadNorms(heads, head_dim, self, make)

    def build(self, width: int, make: Make) -> nn.Module:
        """That of one head."""
        return self.build_heads(1, width, make)
