"""Modules of RMS norms, layer norms and per-head norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from quire_models.loading.mapping import ParameterSlice

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.norms import LayerNorm, PerHead, RMSNorm


class RMSNormModule(nn.Module):
    """The module that the part `parts.norms.RMSNorm` builds. scale: the weight plus the offset.

    total, reduce: if each of several ranks has some columns of x, the number of all columns, and what adds up a number
    of each rank (`quire_models.sharding`).
    """

    def __init__(self, width: int, part: RMSNorm, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        self.weight = builder.parameter(width) if part.affine else None
        self.total, self.reduce = width, cast(Callable[[Tensor], Tensor] | None, None)
        self._ones = None if part.affine else torch.ones(width, dtype=builder.dtype, device=builder.device)
        self.process_weights()

    def process_weights(self) -> None:
        """Add the offset, in float32: in bfloat16, 1 plus a small weight loses the weight."""
        weight = self._ones if self.weight is None else self.weight
        assert weight is not None, "either the weight or ones exist"
        self.scale: Tensor = weight.float() + self.part.offset if self.part.offset else weight

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        if self.reduce is not None:
            return self._norm_across_ranks(x, self.reduce)
        return self._ops.rms_norm(x, self.scale, self.part.eps)

    def _norm_across_ranks(self, x: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        wide = x.float()
        mean = reduce(wide.square().sum(-1, keepdim=True)) / self.total
        return (wide * torch.rsqrt(mean + self.part.eps) * self.scale.float()).to(x.dtype)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of the sum, the sum). May overwrite both arguments."""
        return self._ops.add_rms_norm(x, residual, self.scale, self.part.eps)


def norm_of_sum(norm: nn.Module | None, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """(the sum after the norm, the sum): in one op where the norm has one."""
    if isinstance(norm, RMSNormModule):
        return norm.add(y, x)
    x = x + y
    return x if norm is None else norm(x), x


class LayerNormModule(nn.Module):
    """The module that the part `parts.norms.LayerNorm` builds."""

    def __init__(self, width: int, part: LayerNorm, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        self.weight = builder.parameter(width) if part.affine else None
        self.bias = builder.parameter(width) if part.affine and part.bias else None
        self.process_weights()

    def process_weights(self) -> None:
        self.shifted: Tensor | None = None
        if self.weight is not None and self.part.offset:
            self.shifted = (self.weight.float() + self.part.offset).to(self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        weight = self.weight if self.shifted is None else self.shifted
        return self._ops.layer_norm(x, weight, self.bias, self.part.eps)


class HeadNorms(nn.Module):
    """The module that the part `parts.norms.PerHead` builds; weight [heads, head_dim]."""

    def __init__(self, heads: int, head_dim: int, part: PerHead, builder: ModuleBuilder) -> None:
        super().__init__()
        self.weight = builder.parameter(heads, head_dim)
        self.norm = replace(part.norm, affine=False).build(head_dim, builder)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., heads, head_dim] -> the same shape."""
        return self.norm(x) * self.weight

    def parameter_slices(self, path: str) -> Iterator[tuple[str, ParameterSlice]]:
        """The weight of each head, for example `attn.q_norm.3.weight`."""
        for head in range(len(self.weight)):
            yield f"{path}.{head}.weight", ParameterSlice(f"{path}.weight", (head,))
