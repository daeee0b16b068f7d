"""The modules of pooling heads. They know rows of hidden states, never seqs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional

from quire_models.poolers import Dense
from quire_models.projection import changed

if TYPE_CHECKING:
    from quire_models.make import Make
    from quire_models.poolers import Head


class DenseLayer(nn.Module):
    """The module of `poolers.Dense`."""

    def __init__(self, width: int, part: Dense, make: Make) -> None:
        super().__init__()
        self.part = part
        self._ops = make.ops
        self.dense = make.projection(width, part.outputs, part.bias)

    def forward(self, x: Tensor, adapters: Any = None) -> Tensor:
        """x [rows, width] -> [rows, outputs]. adapters: what is bound for these rows, if anything."""
        y = changed(self.dense, self.dense.multiply(x), x, adapters)
        return y if self.part.act == "identity" else self._ops.act(y, self.part.act)


class NormalizeLayer(nn.Module):
    """The module of `poolers.Normalize`."""

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, width] -> [rows, width], each row of length 1."""
        return functional.normalize(x.float(), dim=-1).to(x.dtype)


class PoolingHead(nn.ModuleList):
    """The module of `poolers.Head`."""

    def __init__(self, width: int, part: Head, make: Make) -> None:
        modules = []
        for layer in part.layers:
            modules.append(layer.build(width, make))
            width = layer.outputs if isinstance(layer, Dense) else width
        super().__init__(modules)
        self.outputs = width

    def forward(self, x: Tensor, adapters: Any = None) -> Tensor:
        """x [rows, width] -> [rows, outputs]."""
        for layer in self:
            x = layer(x, adapters) if isinstance(layer, DenseLayer) else layer(x)
        return x
