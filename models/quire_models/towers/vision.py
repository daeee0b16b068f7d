"""Modules of vision towers for images of one size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.vision import Patches, Projector, VisionEncoder
    from quire_models.towers.tower import TowerContext


class PatchEmbedding(nn.Module):
    """The module that the part `parts.vision.Patches` builds: with stride = kernel size, a convolution is one product.

    first: the class token [width]. positions: [tokens, width].
    """

    def __init__(self, width: int, part: Patches, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.project = builder.projection(part.channels * part.patch**2, width, part.bias)
        self.first = builder.parameter(width) if part.class_token else None
        self.positions = builder.parameter(part.tokens, width)

    def forward(self, pixels: Tensor, context: TowerContext) -> Tensor:
        """Pixels [tiles, channels, tile, tile] -> [tiles * tokens, width]."""
        side, patch, tiles = self.part.side, self.part.patch, len(pixels)
        kept = pixels[:, :, : side * patch, : side * patch]
        # [tiles, channels, side, patch, side, patch]
        cut = kept.unflatten(3, (side, patch)).unflatten(2, (side, patch))
        lines = cut.permute(0, 2, 4, 1, 3, 5).reshape(tiles * side**2, -1)  # [patches, channels * patch * patch]
        x = self.project(lines, context).unflatten(0, (tiles, -1))  # [tiles, side * side, width]
        if self.first is not None:
            x = torch.cat([self.first.expand(tiles, 1, -1), x], 1)
        return (x + self.positions).flatten(0, 1)


class PatchEncoder(nn.Module):
    """The module that the part `parts.vision.VisionEncoder` builds."""

    def __init__(self, part: VisionEncoder, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.patches = part.patches.build(part.width, builder)
        self.norm = part.norm.build(part.width, builder) if part.norm else None
        self.norm_out = part.norm_out.build(part.width, builder) if part.norm_out else None
        self.blocks = nn.ModuleList(block.build(part.width, builder) for block in part.blocks)
        self._indices = part.indices

    def forward(self, pixels: Tensor, patches: TowerContext, tokens: TowerContext) -> Tensor:
        """Pixels [tiles, channels, tile, tile] -> [tiles, tokens, features].

        patches, tokens: contexts with side * side, and with `Patches.tokens`, tokens for each tile.
        """
        x = self.patches(pixels, patches)
        x = x if self.norm is None else self.norm(x)
        found = {}
        for i in range(max(self._indices) + 1):
            x = self.blocks[i - 1](x, tokens) if i else x
            if i in self._indices:
                found[i] = x.clone()  # the next block may overwrite it
        if self.norm_out is not None and len(self.blocks) in found:
            found[len(self.blocks)] = self.norm_out(x)
        features = torch.cat([found[i] for i in self._indices], -1).unflatten(0, (len(pixels), -1))
        return features[:, 1:] if self.part.drop_first else features


class FeatureProjector(nn.Module):
    """The module that the part `parts.vision.Projector` builds."""

    def __init__(self, width: int, part: Projector, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        self.up = builder.projection(part.inputs, part.expansion * width, part.bias)
        self.down = builder.projection(part.expansion * width, width, part.bias)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [tokens, inputs] -> [tokens, width]."""
        return self.down(self._ops.act(self.up(x, context), self.part.act), context)
