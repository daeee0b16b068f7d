"""The module of `GatedProjector`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.functional import silu

from quire_models import ModuleBuilder

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.vision.aya.aya_vision import GatedProjector


class GatedProjectorModule(nn.Module):
    """up_gate: the rows of up, then those of gate."""

    def __init__(self, width: int, part: GatedProjector, builder: ModuleBuilder) -> None:
        super().__init__()
        self.up_gate = builder.projection(part.inputs, 2 * part.inner, bias=True)
        self.down = builder.projection(part.inner, width, bias=True)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [tokens, inputs] -> [tokens, width]."""
        up, gate = self.up_gate(x, context).chunk(2, -1)
        projected: Tensor = self.down(silu(gate) * up, context)
        return projected
