"""The module of `LayerScaleBlock`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from quire_models import ModuleBuilder

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.vision.shuffled.internvl_encoder import LayerScaleBlock


class LayerScaleModule(nn.Module):
    """A block whose branches are scaled before they are added. attn_scale, mlp_scale: [width]."""

    def __init__(self, width: int, part: LayerScaleBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self.attn = part.attn.build(width, builder)
        self.mlp = part.mlp.build(width, builder)
        self.attn_in = part.norm.build(width, builder)
        self.mlp_in = part.norm.build(width, builder)
        self.attn_scale = builder.parameter(width)
        self.mlp_scale = builder.parameter(width)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        x = x + self.attn_scale * self.attn(self.attn_in(x), context)
        return x + self.mlp_scale * self.mlp(self.mlp_in(x), context)
