"""The modules of `Phi4ImageTower`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, scaled_dot_product_attention

from quire_models import Items, LayerNorm, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.audio.phi4.image_encoder import Phi4ImageTower

DUMMY_CROPS = 16
"""Crops of an image that memory is measured with."""


class Phi4ImageModule(nn.Module):
    """Images to embeddings.

    An image has `pixels` [1 + lines * columns, channels, crop, crop], scaled to one crop and then its crops line by
    line; `real`, int64 [1 + lines * columns, 2]: rows and columns of patches of each that are no padding; and `grid`,
    int64 [2]: lines and columns. positions: [side², width]. newline, separator: [width], at the end of each line of
    squares, and between the crops and the whole image.
    """

    def __init__(self, width: int, part: Phi4ImageTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.patches = builder.projection(part.channels * part.patch**2, part.width, bias=True)
        self.positions = builder.parameter(part.side**2, part.width)
        self.blocks = nn.ModuleList(Phi4ImageBlock(part, builder.at_layer(i)) for i in range(part.num_blocks))
        self.newline, self.separator = builder.parameter(part.width), builder.parameter(part.width)
        self.projector = part.projector.build(width, builder)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows of each image."""
        crops = [len(item["pixels"]) for item in items]
        tokens = call.context([count * self.part.side**2 for count in crops])
        real = torch.cat([item["real"] for item in items])
        x, seen = self._embedded(torch.cat([item["pixels"] for item in items]), real, tokens), self._seen(real)
        for block in self.blocks:
            x = block(x, seen, tokens)
        grids = x.unflatten(0, (-1, self.part.side, self.part.side)).permute(0, 3, 1, 2)
        squares = avg_pool2d(grids, 2).permute(0, 2, 3, 1)  # [crops, half, half, width]
        lined = [self._lined(some, item) for some, item in zip(squares.split(crops), items, strict=True)]
        counts = [len(rows) for rows in lined]
        return list(self.projector(torch.cat(lined), call.context(counts)).split(counts))

    def _embedded(self, pixels: Tensor, real: Tensor, context: TowerContext) -> Tensor:
        """Pixels [crops, channels, crop, crop] -> [crops * side², width]."""
        side, patch = self.part.side, self.part.patch
        cut = pixels.unflatten(3, (side, patch)).unflatten(2, (side, patch))
        x = self.patches(cut.permute(0, 2, 4, 1, 3, 5).reshape(len(pixels) * side**2, -1), context)
        places = self._places(real[:, 0])[:, :, None] * side + self._places(real[:, 1])[:, None]
        inside = self._seen(real).unflatten(1, (side, side))
        return x + self.positions[torch.where(inside, places, 0).flatten()]

    def _places(self, real: Tensor) -> Tensor:
        """Rows of the table of positions for patches of a line of which `real` [crops] are no padding: [crops, side].

        The real patches are spread over all places, as for images of other sizes than those of training.
        """
        side = self.part.side
        borders = torch.arange(1 / side, 1.0, 1 / side, device=real.device)
        at = torch.arange(side, device=real.device, dtype=torch.float32) * (1.0 / real)[:, None]
        return torch.bucketize(at.clamp(max=1.0 - 1e-6), borders, right=True)

    def _seen(self, real: Tensor) -> Tensor:
        """Which patches are no padding: bool [crops, side²]."""
        at = torch.arange(self.part.side, device=real.device)
        rows, columns = at < real[:, :1], at < real[:, 1:]
        return (rows[:, :, None] & columns[:, None]).flatten(1)

    def _lined(self, squares: Tensor, item: Mapping[str, Tensor]) -> Tensor:
        """[1 + crops, half, half, width] -> [rows, width], without squares of padding."""
        lines, columns = item["grid"].tolist()
        real = (item["real"][1:] + 1) // 2
        height = int(real[::columns, 0].sum())
        width = int(real[:columns, 1].sum())
        crops = squares[1:].unflatten(0, (lines, columns)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
        return torch.cat([self._ended(crops[:height, :width]), self.separator[None], self._ended(squares[0])])

    def _ended(self, lines: Tensor) -> Tensor:
        """Flattens [lines, columns, width] and adds the end of each line."""
        return torch.cat([lines, self.newline.expand(len(lines), 1, -1)], 1).flatten(0, 1)

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """An image of several crops."""
        part = self.part
        pixels = self.newline.new_zeros(1 + DUMMY_CROPS, part.channels, part.crop, part.crop)
        real = torch.full((1 + DUMMY_CROPS, 2), part.side, device=pixels.device)
        grid = torch.tensor([DUMMY_CROPS, 1], device=pixels.device)
        return {"pixels": pixels, "real": real, "grid": grid}, part.rows(DUMMY_CROPS * part.side // 2, part.side // 2)


class Phi4ImageBlock(nn.Module):
    """A pre-norm block whose patches attend to the patches of their crop that are no padding."""

    def __init__(self, part: Phi4ImageTower, builder: ModuleBuilder) -> None:
        super().__init__()
        norm = LayerNorm(part.eps)
        self.part = part
        self.attn_in, self.mlp_in = norm.build(part.width, builder), norm.build(part.width, builder)
        self.attn = CropAttention(part, builder)
        self.mlp = part.mlp.build(part.width, builder)

    def forward(self, x: Tensor, seen: Tensor, context: TowerContext) -> Tensor:
        """x [crops * side², width] -> the same shape. seen: bool [crops, side²]."""
        x = x + self.attn(self.attn_in(x), seen, context)
        found: Tensor = x + self.mlp(self.mlp_in(x), context)
        return found


class CropAttention(nn.Module):
    """Attention of patches within their crop."""

    def __init__(self, part: Phi4ImageTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self._heads, self._tokens = part.heads, part.side**2
        self.qkv = builder.projection(part.width, {"q": part.width, "k": part.width, "v": part.width}, bias=True)
        self.o = builder.projection(part.width, part.width, bias=True)

    def forward(self, x: Tensor, seen: Tensor, context: TowerContext) -> Tensor:
        """x [crops * tokens, width] -> the same shape."""
        cut = self.qkv(x, context).unflatten(0, (-1, self._tokens)).unflatten(-1, (3, self._heads, -1))
        q, k, v = cut.permute(2, 0, 3, 1, 4)  # [crops, heads, tokens, head_dim] each
        read = scaled_dot_product_attention(q, k, v, seen[:, None, None])
        found: Tensor = self.o(read.transpose(1, 2).flatten(2).flatten(0, 1), context)
        return found
