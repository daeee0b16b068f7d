"""The modules of norms. They know tokens one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models.mapping import Place

if TYPE_CHECKING:
    from quire_models.make import Make
    from quire_models.norm_parts import LayerNorm, Norm, PerHead


class RmsNorm(nn.Module):
    """The module of `parts.Norm`; `scale` is the weight with the offset added."""

    def __init__(self, width: int, part: Norm, make: Make) -> None:
        super().__init__()
        self.part = part
        self._ops = make.ops
        self.weight = make.parameter(width) if part.affine else None
        self._ones = None if part.affine else torch.ones(width, dtype=make.dtype, device=make.device)
        self.prepare()

    def prepare(self) -> None:
        """Add the offset, in float32 because one plus a small weight loses it in bfloat16."""
        weight = self._ones if self.weight is None else self.weight
        assert weight is not None, "one of them is there"
        self.scale: Tensor = weight.float() + self.part.offset if self.part.offset else weight

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        return self._ops.rms_norm(x, self.scale, self.part.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm of the sum, the sum); neither argument may be read afterwards."""
        return self._ops.add_rms_norm(x, residual, self.scale, self.part.eps)


class MeanNorm(nn.Module):
    """The module of `parts.LayerNorm`."""

    def __init__(self, width: int, part: LayerNorm, make: Make) -> None:
        super().__init__()
        self.part = part
        self._ops = make.ops
        self.weight = make.parameter(width) if part.affine else None
        self.bias = make.parameter(width) if part.affine and part.bias else None
        self.prepare()

    def prepare(self) -> None:
        """Add the offset."""
        self.shifted: Tensor | None = None
        if self.weight is not None and self.part.offset:
            self.shifted = (self.weight.float() + self.part.offset).to(self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape."""
        weight = self.weight if self.shifted is None else self.shifted
        return self._ops.layer_norm(x, weight, self.bias, self.part.eps)


class HeadNorms(nn.Module):
    """The module of `parts.PerHead`; weight [heads, head_dim]."""

    def __init__(self, heads: int, head_dim: int, part: PerHead, make: Make) -> None:
        super().__init__()
        self.weight = make.parameter(heads, head_dim)
        self.norm = replace(part.norm, affine=False).build(head_dim, make)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., heads, head_dim] -> the same shape."""
        return self.norm(x) * self.weight

    def pieces(self, path: str) -> Iterator[tuple[str, Place]]:
        """The weight of one head: `attn.q_norm.3.weight`."""
        for head in range(len(self.weight)):
            yield f"{path}.{head}.weight", Place(f"{path}.weight", (head,))
