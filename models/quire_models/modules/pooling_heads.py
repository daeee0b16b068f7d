"""Modules of pooling heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional

from quire_models.modules.projection import apply_adapters
from quire_models.parts.pooling import Dense

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.pooling import Head


class DenseLayer(nn.Module):
    """The module that the part `parts.pooling.Dense` builds."""

    def __init__(self, width: int, part: Dense, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        self.dense = builder.projection(width, part.outputs, part.bias)

    def forward(self, x: Tensor, adapters: Any = None) -> Tensor:
        """x [rows, width] -> [rows, outputs]. adapters: what is bound for these rows, if anything."""
        y = apply_adapters(self.dense, self.dense.multiply(x), x, adapters)
        return y if self.part.act == "identity" else self._ops.act(y, self.part.act)


class NormalizeLayer(nn.Module):
    """The module that the part `parts.pooling.Normalize` builds."""

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, width] -> [rows, width], each row of length 1."""
        return functional.normalize(x.float(), dim=-1).to(x.dtype)


class PoolingHead(nn.ModuleList):
    """The module that the part `parts.pooling.Head` builds."""

    def __init__(self, width: int, part: Head, builder: ModuleBuilder) -> None:
        modules = []
        for layer in part.layers:
            modules.append(layer.build(width, builder))
            width = layer.outputs if isinstance(layer, Dense) else width
        super().__init__(modules)
        self.outputs = width

    def forward(self, x: Tensor, adapters: Any = None) -> Tensor:
        """x [rows, width] -> [rows, outputs]."""
        for layer in self:
            x = layer(x, adapters) if isinstance(layer, DenseLayer) else layer(x)
        return x
