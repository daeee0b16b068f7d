"""Norms as parts: frozen descriptions that import no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True)
class RMSNorm:
    """Root-mean-square norm. offset: added to the stored weight (Gemma stores weight - 1). affine: whether it has a
    weight.
    """

    eps: float = 1e-6
    offset: float = 0.0
    affine: bool = True

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module [..., width] -> [..., width]."""
        from quire_models.modules.norms import RMSNormModule

        return RMSNormModule(width, self, builder)


@dataclass(frozen=True)
class LayerNorm:
    """Layer norm, with weight and bias unless `affine` is off, or with the weight only if `bias` is off.

    offset: added to the stored weight (Nemotron stores weight - 1).
    """

    eps: float = 1e-5
    affine: bool = True
    bias: bool = True
    offset: float = 0.0

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module [..., width] -> [..., width]."""
        from quire_models.modules.norms import LayerNormModule

        return LayerNormModule(width, self, builder)


@dataclass(frozen=True)
class PerHead:
    """For `Attention.qk_norm`: a norm of each head that has a weight of its own; `norm` has neither bias nor offset.

    The weight is [heads, head_dim], in checkpoints possibly one tensor per head: `attn.q_norm.3.weight`.
    """

    norm: RMSNorm | LayerNorm

    def build_heads(self, heads: int, head_dim: int, builder: ModuleBuilder) -> nn.Module:
        """A module [..., heads, head_dim] -> the same shape."""
        from quire_models.modules.norms import HeadNorms

        return HeadNorms(heads, head_dim, self, builder)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The module of a single head."""
        return self.build_heads(1, width, builder)
